#include "plan.h"

#include <algorithm>
#include <numeric>

namespace decider {
namespace {

size_t common_prefix(Row a, Row b) {
    const size_t n = std::min(a.size(), b.size());
    return std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin();
}

// Writes the steps of one call. Rows are addressed by their place in Plan::order.
class Planner {
  public:
    Planner(std::span<const Row> rows, const Budget & budget, const Contexts & contexts)
        : rows_(rows), budget_(budget), contexts_(contexts), order_(plan_.order) {
        plan_.same_as.resize(rows.size());
        std::vector<int> sorted(rows.size());
        std::iota(sorted.begin(), sorted.end(), 0);
        std::stable_sort(sorted.begin(), sorted.end(), [&](int a, int b) {
            return std::lexicographical_compare(rows[a].begin(), rows[a].end(), rows[b].begin(), rows[b].end());
        });
        for (const int row : sorted) {
            const bool repeats = !order_.empty() && std::ranges::equal(rows[order_.back()], rows[row]);
            plan_.same_as[row] = repeats ? order_.back() : row;
            if (!repeats) {
                order_.push_back(row);
            }
        }
        for (size_t i = 1; i < order_.size(); ++i) {
            const Row a = rows[order_[i - 1]];
            const Row b = rows[order_[i]];
            shared_.push_back(static_cast<int>(std::min({common_prefix(a, b), a.size() - 1, b.size() - 1})));
        }
        free_.resize(budget.sequences);
        std::iota(free_.rbegin(), free_.rend(), 0);
    }

    Plan run() {
        if (!order_.empty()) {
            const int sequence = take();
            walk(0, order_.size(), contexts_.restored, sequence);
            give_back(sequence);
        }
        return std::move(plan_);
    }

  private:
    // Decode the rows order_[first, last) on `sequence`, which holds their first `done` tokens. Several rows need one
    // free sequence to fork into.
    void walk(size_t first, size_t last, int done, int sequence) {
        if (last - first == 1) {
            read(first, done, sequence);
            return;
        }
        const int shared = *std::min_element(shared_.begin() + first, shared_.begin() + last - 1);
        done = save_context(first, last, done, shared, sequence);
        // A cut shorter than a step costs tokens instead: the children decode what they share each for itself.
        const bool cut = shared - done >= budget_.min_step_tokens;
        if (cut) {
            extend(first, last, done, shared, sequence);
        }
        branch(first, last, shared, cut ? shared : done, sequence);
    }

    // Where the rows order_[first, last) have one context that ends after `done` and not after `shared`: decode up to
    // there and save it. Returns how many tokens the sequence holds.
    int save_context(size_t first, size_t last, int done, int shared, int sequence) {
        if (!saves(first, done)) {
            return done;
        }
        const int end = contexts_.lengths[order_[first]];
        for (size_t at = first; at < last; ++at) {
            if (contexts_.lengths[order_[at]] != end) {
                return done;
            }
        }
        if (end > shared) {
            return done;
        }
        extend(first, last, done, end, sequence);
        plan_.steps.push_back(Save{sequence, order_[first], end, range(first, last)});
        return end;
    }

    // Split order_[first, last) where neighbours share no more than `depth` tokens, and decode every part.
    void branch(size_t first, size_t last, int depth, int done, int sequence) {
        std::vector<size_t> single;
        std::vector<std::pair<size_t, size_t>> groups;
        for (size_t start = first, i = first; i < last; ++i) {
            if (i + 1 < last && shared_[i] > depth) {
                continue;
            }
            if (i > start && !free_.empty()) {
                groups.emplace_back(start, i + 1);
            } else {  // one row, or a group that would find no sequence to fork into
                for (size_t at = start; at <= i; ++at) {
                    single.push_back(at);
                }
            }
            start = i + 1;
        }
        for (const auto & [from, to] : groups) {
            if (single.empty() && to == groups.back().second) {
                walk(from, to, done, sequence);
                return;
            }
            const int child = fork(sequence);
            walk(from, to, done, child);
            give_back(child);
        }
        read_all(single, done, sequence);
    }

    // Read single rows that hang at one node. The last of all, when it has a step of its own, extends the node's
    // sequence.
    void read_all(std::vector<size_t> single, int done, int sequence) {
        std::ranges::stable_sort(single, {}, [&](size_t at) { return rest(at, done); });
        size_t first = 0;
        for (const size_t last : arrange(single, done)) {
            const std::span<const size_t> rows = std::span(single).subspan(first, last - first);
            first = last;
            if (rows.size() == 1 && last == single.size()) {
                read(rows[0], done, sequence);
                continue;
            }
            for (size_t i = 0; i < rows.size(); ++i) {
                plan_.steps.push_back(Fork{sequence, leaf(i)});
            }
            if (rows.size() == 1) {
                read(rows[0], done, leaf(0));
            } else {
                read_together(rows, done);
            }
            for (size_t i = 0; i < rows.size(); ++i) {
                plan_.steps.push_back(Drop{leaf(i)});
            }
        }
    }

    // Where to cut `single`, sorted by length, into steps: the end of each, at the least cost in tokens.
    std::vector<size_t> arrange(std::span<const size_t> single, int done) const {
        std::vector<int64_t> cost{0};  // of the first rows, as many as its place says
        std::vector<size_t> start{0};  // of the last step of these
        for (size_t end = 1; end <= single.size(); ++end) {
            const int longest = rest(single[end - 1], done);
            cost.push_back(cost[end - 1] + budget_.step_cost + longest);
            start.push_back(end - 1);
            for (size_t rows = 2; rows <= std::min(end, size_t(budget_.rows_per_step)); ++rows) {
                const int64_t tokens = int64_t(longest) * int64_t(rows);
                if (tokens > budget_.step_tokens || saves(single[end - 1], done) || saves(single[end - rows], done)) {
                    break;
                }
                const int64_t total = cost[end - rows] + budget_.step_cost + tokens;
                if (total < cost[end]) {
                    cost[end] = total;
                    start[end] = end - rows;
                }
            }
        }
        std::vector<size_t> ends;
        for (size_t end = single.size(); end > 0; end = start[end]) {
            ends.insert(ends.begin(), end);
        }
        return ends;
    }

    // One step for several rows, padded to the length of the last, which is the longest.
    void read_together(std::span<const size_t> rows, int done) {
        const int longest = rest(rows.back(), done);
        Decode decode;
        for (size_t i = 0; i < rows.size(); ++i) {
            decode.segments.push_back(last_segment(rows[i], done, leaf(i), longest));
        }
        push(std::move(decode));
    }

    int leaf(size_t i) const { return budget_.sequences + int(i); }

    Segment last_segment(size_t at, int begin, int sequence, int tokens) const {
        const int end = length(at);
        return {sequence, order_[at], begin, end, begin + tokens - end, true, range(at, at + 1)};
    }

    // Decode the rest of one row and read it; a long rest in even pieces.
    void read(size_t at, int done, int sequence) {
        done = save_context(at, at + 1, done, length(at) - 1, sequence);
        const int left = length(at) - done;
        const int last = length(at) - left / pieces(left);
        extend(at, at + 1, done, last, sequence);
        push(Decode{{last_segment(at, last, sequence, rest(at, last))}});
    }

    // Decode tokens [begin, end) that the rows order_[first, last) share, in even pieces no longer than a step.
    void extend(size_t first, size_t last, int begin, int end, int sequence) {
        const int n = pieces(end - begin);
        const auto edge = [&](int i) { return begin + int(int64_t(end - begin) * i / n); };
        for (int i = 0; i < n; ++i) {
            push(Decode{{{sequence, order_[first], edge(i), edge(i + 1), 0, false, range(first, last)}}});
        }
    }

    int pieces(int tokens) const { return (tokens + budget_.step_tokens - 1) / budget_.step_tokens; }

    static Range range(size_t first, size_t last) { return {int(first), int(last)}; }

    int length(size_t at) const { return int(rows_[order_[at]].size()); }

    // Whether the context of a row ends after `done`, far enough to be saved.
    bool saves(size_t at, int done) const {
        return !contexts_.lengths.empty() && contexts_.lengths[order_[at]] - done >= budget_.min_step_tokens;
    }

    // Tokens of a step that decodes what is left of a row, padding included.
    int rest(size_t at, int done) const { return std::max(budget_.min_step_tokens, length(at) - done); }

    void push(Decode decode) {
        for (const Segment & s : decode.segments) {
            plan_.decoded_tokens += s.end - s.begin;
            plan_.padded_tokens += s.padding;
        }
        plan_.steps.push_back(std::move(decode));
    }

    int take() {
        const int sequence = free_.back();
        free_.pop_back();
        return sequence;
    }

    int fork(int source) {
        const int target = take();
        plan_.steps.push_back(Fork{source, target});
        return target;
    }

    void give_back(int sequence) {
        plan_.steps.push_back(Drop{sequence});
        free_.push_back(sequence);
    }

    std::span<const Row> rows_;
    const Budget budget_;
    const Contexts & contexts_;
    Plan plan_;
    std::vector<int> & order_;  // distinct rows, sorted
    std::vector<int> shared_;   // shared_[i]: tokens that order_[i] and order_[i + 1] share
    std::vector<int> free_;     // sequences not in use, the lowest last
};

}  // namespace

Plan make_plan(std::span<const Row> rows, const Budget & budget, const Contexts & contexts) {
    return Planner(rows, budget, contexts).run();
}

}  // namespace decider
