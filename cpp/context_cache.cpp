#include "context_cache.h"

#include <algorithm>

namespace decider {

std::shared_ptr<const ContextCache::Entry> ContextCache::find(Row row) {
    auto best = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
        const std::vector<Token> & tokens = (*entry)->tokens;
        const bool longer = best == entries_.end() || tokens.size() > (*best)->tokens.size();
        if (longer && tokens.size() < row.size() && std::ranges::equal(tokens, row.first(tokens.size()))) {
            best = entry;
        }
    }
    if (best == entries_.end()) {
        return nullptr;
    }
    entries_.splice(entries_.begin(), entries_, best);
    return entries_.front();
}

void ContextCache::put(Row context, std::vector<uint8_t> state) {
    std::erase_if(entries_, [&](const std::shared_ptr<const Entry> & entry) {
        const bool same = std::ranges::equal(entry->tokens, context);
        bytes_ -= same ? entry->state.size() : 0;
        return same;
    });
    bytes_ += state.size();
    entries_.push_front(std::make_shared<const Entry>(Entry{{context.begin(), context.end()}, std::move(state)}));
    while (bytes_ > limit_) {
        bytes_ -= entries_.back()->state.size();
        entries_.pop_back();
    }
}

}  // namespace decider
