#include "context_cache.h"

#include <algorithm>

namespace decider {

std::shared_ptr<const ContextCache::Entry> ContextCache::find(Row row, const void * home) const {
    std::shared_ptr<const Entry> best;
    const auto consider = [&](const std::shared_ptr<const Entry> & entry) {
        const size_t n = entry ? entry->tokens.size() : 0;
        if (n > (best ? best->tokens.size() : 0) && n < row.size() && entry->home == home &&
            std::ranges::equal(entry->tokens, row.first(n))) {
            best = entry;
        }
    };
    std::ranges::for_each(entries_, consider);
    for (const auto & pinned : pinned_) {
        consider(pinned.lock());
    }
    return best;
}

void ContextCache::use(const std::shared_ptr<const Entry> & entry) {
    if (const auto kept = std::ranges::find(entries_, entry); kept != entries_.end()) {
        entries_.splice(entries_.begin(), entries_, kept);
    }
}

std::shared_ptr<const ContextCache::Entry> ContextCache::put(Entry kept) {
    const auto entry = std::make_shared<const Entry>(std::move(kept));
    std::erase_if(entries_, [&](const std::shared_ptr<const Entry> & old) {
        const bool same = old->tokens == entry->tokens && old->home == entry->home;
        bytes_ -= same ? old->state.size() : 0;
        return same;
    });
    if (fits(entry->state.size())) {
        bytes_ += entry->state.size();
        entries_.push_front(entry);
        while (bytes_ > limit_) {
            bytes_ -= entries_.back()->state.size();
            entries_.pop_back();
        }
    }
    return entry;
}

void ContextCache::pin(const std::shared_ptr<const Entry> & entry) {
    std::erase_if(pinned_, [](const std::weak_ptr<const Entry> & pinned) { return pinned.expired(); });
    pinned_.push_back(entry);
}

}  // namespace decider
