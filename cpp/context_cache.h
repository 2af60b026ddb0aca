// Prefilled contexts kept between calls: copies of a sequence's state after its tokens, within a bound of bytes.
#pragma once

#include "plan.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

namespace decider {

// Not thread-safe: it belongs to an engine's owner thread.
class ContextCache {
  public:
    struct Entry {
        Entry(Row context, std::vector<uint8_t> copy, const void * owner)
            : tokens(context.begin(), context.end()), state(std::move(copy)), home(owner) {}
        const std::vector<Token> tokens;
        const std::vector<uint8_t> state;
        const void * const home;  // the reader that can take the state back
    };

    explicit ContextCache(size_t limit_bytes) : limit_(limit_bytes) {}

    // The longest entry of `home` that `row` starts with and goes on from; null when there is none.
    std::shared_ptr<const Entry> find(Row row, const void * home) const;

    // It is the most recently used from now on.
    void use(const std::shared_ptr<const Entry> & entry);

    // Whether a state of so many bytes may be kept at all.
    bool fits(size_t state_bytes) const { return state_bytes <= limit_; }
    bool enabled() const { return limit_ > 0; }

    // Keep a state, where it fits; the least recently used ones leave when the bound is passed.
    std::shared_ptr<const Entry> put(Entry entry);

    // Find an entry for as long as somebody else holds it, too, even after it has left the bound.
    void pin(const std::shared_ptr<const Entry> & entry);

    size_t bytes() const { return bytes_; }
    size_t size() const { return entries_.size(); }

  private:
    const size_t limit_;
    size_t bytes_ = 0;
    std::list<std::shared_ptr<const Entry>> entries_;  // most recently used first
    std::vector<std::weak_ptr<const Entry>> pinned_;
};

}  // namespace decider
