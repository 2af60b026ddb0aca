#include "plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace decider {
namespace {

constexpr int64_t impossible = std::numeric_limits<int64_t>::max();

size_t common_prefix(Row a, Row b) {
    const size_t n = std::min(a.size(), b.size());
    return std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin();
}

int divided_up(int64_t a, int64_t b) {
    return int((a + b - 1) / b);
}

// A list cut into runs of neighbours: where each ends, and what all of them cost.
struct Runs {
    std::vector<size_t> ends;
    int64_t cost;
};

// The cheapest way to cut a list into runs of at most `longest` items. cost(first, last) is what a run costs, or
// `impossible`; an item alone never is.
template <typename Cost>
Runs cheapest_runs(size_t size, size_t longest, Cost cost) {
    std::vector<int64_t> total{0};  // of the first items, as many as its place says
    std::vector<size_t> start{0};   // of the last run of these
    for (size_t end = 1; end <= size; ++end) {
        total.push_back(impossible);
        start.push_back(end);
        for (size_t items = 1; items <= std::min(end, longest); ++items) {
            const int64_t run = cost(end - items, end);
            if (run != impossible && total[end - items] + run < total[end]) {
                total[end] = total[end - items] + run;
                start[end] = end - items;
            }
        }
    }
    Runs runs{{}, total[size]};
    for (size_t end = size; end > 0; end = start[end]) {
        runs.ends.push_back(end);
    }
    std::ranges::reverse(runs.ends);
    return runs;
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
    }

    Plan run() {
        const int sequence = used_++;
        if (order_.size() == 1) {
            read({0, contexts_.restored, sequence}, sequence);
            plan_.steps.push_back(Drop{sequence});
        } else if (!order_.empty()) {
            const Node root = node(0, order_.size(), contexts_.restored);
            grow(root, sequence, {root.rows()});
            branch(root, sequence);
        }
        return std::move(plan_);
    }

  private:
    // Rows order_[first, last) that are decoded together from `begin` to `done`.
    struct Node {
        size_t first;
        size_t last;
        int shared;  // tokens that the rows share: `done` or, when what is left makes no step, more
        int begin;
        int saved;  // where their context ends, and is saved on the way; `begin`: nowhere
        int done;

        int tokens() const { return done - begin; }
        bool saves() const { return saved > begin; }
        Range rows() const { return {int(first), int(last)}; }
    };

    // A row of which all tokens from `done` on are decoded for itself, behind what `sequence` holds.
    struct Leaf {
        size_t at;
        int done;
        int sequence;
    };

    // What hangs at a node.
    struct Branches {
        std::vector<size_t> rows;
        std::vector<Node> nodes;
    };

    Node node(size_t first, size_t last, int begin) const {
        const int shared = *std::min_element(shared_.begin() + first, shared_.begin() + last - 1);
        const int saved = context_end(first, last, begin, shared);
        // A cut shorter than a step costs tokens instead: the children decode what they share each for itself.
        const int done = shared - saved >= budget_.min_step_tokens ? shared : saved;
        return {first, last, shared, begin, saved, done};
    }

    // Where the rows order_[first, last) have one context that is to be saved and ends between `begin` and `shared`:
    // its end. Otherwise `begin`.
    int context_end(size_t first, size_t last, int begin, int shared) const {
        if (!saves(first, begin)) {
            return begin;
        }
        const int end = contexts_.lengths[order_[first]];
        for (size_t at = first; at < last; ++at) {
            if (contexts_.lengths[order_[at]] != end) {
                return begin;
            }
        }
        return end > shared ? begin : end;
    }

    // Decode a node's tokens on a sequence that holds what comes before. `needed_by`: the rows that build on them.
    void grow(const Node & n, int sequence, const std::vector<Range> & needed_by) {
        extend(n.rows(), n.begin, n.saved, sequence, needed_by);
        if (n.saves()) {
            plan_.steps.push_back(Save{sequence, order_[n.first], n.saved, n.rows()});
        }
        extend(n.rows(), n.saved, n.done, sequence, needed_by);
    }

    // Read all rows of a node, whose tokens `sequence` holds, and drop the sequence, which is the last of those in use.
    // What comes last extends it in place; where it holds nothing, everything does.
    void branch(const Node & parent, int sequence) {
        const bool empty = parent.done == 0;
        const int free = budget_.sequences - used_ + empty;
        const Branches below = branches(parent, free > 0);
        const auto groups = arrange(below.nodes, std::min(free, budget_.rows_per_step));
        bool held = !empty;
        for (const std::vector<Node> & nodes : groups) {
            const bool in_place = empty || (below.rows.empty() && &nodes == &groups.back());
            read_side_by_side(nodes, sequence, in_place);
            held = held && !in_place;
        }
        std::vector<Leaf> leaves;
        for (const size_t at : below.rows) {
            leaves.push_back({at, parent.done, sequence});
        }
        read_all(std::move(leaves));
        if (held) {
            plan_.steps.push_back(Drop{sequence});
        }
    }

    // A node that would have too little to decode is none: what hangs at it hangs at its parent. Without `share` there
    // are only rows.
    Branches branches(const Node & parent, bool share) const {
        Branches result;
        split(parent, parent.done, share, result);
        return result;
    }

    void split(const Node & parent, int done, bool share, Branches & result) const {
        for (size_t start = parent.first, i = start; i < parent.last; ++i) {
            if (share && i + 1 < parent.last && shared_[i] > parent.shared) {
                continue;
            }
            if (i == start) {
                result.rows.push_back(i);
            } else if (const Node n = node(start, i + 1, done); n.tokens() > 0) {
                result.nodes.push_back(n);
            } else {
                split(n, done, share, result);
            }
            start = i + 1;
        }
    }

    // Which nodes of one parent are read side by side, at most so many: each on a sequence, so that their rows share
    // steps. Nodes that branch again stay alone.
    std::vector<std::vector<Node>> arrange(std::span<const Node> nodes, int most) const {
        std::vector<std::vector<Node>> groups;
        std::vector<Node> flat;
        for (const Node & n : nodes) {
            if (branches(n, true).nodes.empty()) {
                flat.push_back(n);
            } else {
                groups.push_back({n});
            }
        }
        std::ranges::stable_sort(flat, {}, &Node::tokens);
        const auto group = [&](size_t first, size_t last) {
            return levelled({flat.begin() + first, flat.begin() + last});
        };
        size_t first = 0;
        for (const size_t last :
             cheapest_runs(flat.size(), most, [&](size_t from, size_t to) { return cost(group(from, to)); }).ends) {
            groups.push_back(group(std::exchange(first, last), last));
        }
        return groups;
    }

    // Nodes side by side, the shortest first: cut at its length, to be decoded in one step, if that is cheaper.
    std::vector<Node> levelled(const std::vector<Node> & nodes) const {
        if (std::ranges::any_of(nodes, &Node::saves)) {
            return nodes;
        }
        std::vector<Node> cut = nodes;
        for (Node & n : cut) {
            n.done = n.begin + nodes[0].tokens();
        }
        return cost(cut) < cost(nodes) ? cut : nodes;
    }

    int64_t cost(const std::vector<Node> & nodes) const {
        int64_t tokens = 0;
        int64_t apart = 0;
        for (const Node & n : nodes) {
            tokens += n.tokens();
            apart += cost(n.tokens());
        }
        if (nodes.size() > 1 && tokens > budget_.step_tokens) {  // what they hold at once is bounded
            return impossible;
        }
        std::vector<Leaf> leaves = leaves_of(nodes, 0);
        sort(leaves);
        return (make_one_step(nodes) ? cost(tokens) : apart) + arrange(leaves).cost;
    }

    // Asked of nodes that are no longer than a step together.
    static bool make_one_step(const std::vector<Node> & nodes) {
        return nodes.size() > 1 && std::ranges::all_of(nodes, [&](const Node & n) {
                   return !n.saves() && n.tokens() == nodes[0].tokens();
               });
    }

    void read_side_by_side(const std::vector<Node> & nodes, int parent, bool in_place) {
        const int first = in_place ? parent : used_;  // of neighbouring sequences
        Decode together;
        for (int i = 0; const Node & n : nodes) {
            if (i > 0 || !in_place) {
                fork(parent, n.begin, used_++);
            }
            together.segments.push_back({first + i++, order_[n.first], n.begin, n.done, 0, false, n.rows()});
            together.needed_by.push_back(n.rows());
        }
        if (make_one_step(nodes)) {
            push(together);
        } else {
            for (int i = 0; const Node & n : nodes) {
                grow(n, first + i++, together.needed_by);
            }
        }
        if (nodes.size() == 1) {
            branch(nodes[0], first);
        } else {
            read_all(leaves_of(nodes, first));
            for (size_t i = 0; i < nodes.size(); ++i) {
                plan_.steps.push_back(Drop{first + int(i)});
            }
        }
        used_ -= int(nodes.size()) - in_place;
    }

    // The rows that hang at nodes on neighbouring sequences.
    std::vector<Leaf> leaves_of(const std::vector<Node> & nodes, int sequence) const {
        std::vector<Leaf> leaves;
        for (const Node & n : nodes) {
            for (size_t at = n.first; at < n.last; ++at) {
                leaves.push_back({at, n.done, sequence});
            }
            ++sequence;
        }
        return leaves;
    }

    // Each row on a sequence of its own, but for the last one that is alone in its step: it extends its node's.
    void read_all(std::vector<Leaf> leaves) {
        sort(leaves);
        size_t first = 0;
        for (const size_t last : arrange(leaves).ends) {
            const std::span<const Leaf> rows = std::span(leaves).subspan(first, last - first);
            first = last;
            const auto same_sequence = [&](const Leaf & other) { return other.sequence == rows[0].sequence; };
            if (rows.size() == 1 && rows[0].done > 0 &&
                std::none_of(leaves.begin() + last, leaves.end(), same_sequence)) {
                read(rows[0], rows[0].sequence);
                continue;
            }
            const int sequences = budget_.sequences;  // of leaves come after those
            for (int i = 0; const Leaf & leaf : rows) {
                fork(leaf.sequence, leaf.done, sequences + i++);
            }
            if (rows.size() == 1) {
                read(rows[0], sequences);
            } else {
                read_together(rows);
            }
            for (size_t i = 0; i < rows.size(); ++i) {
                plan_.steps.push_back(Drop{sequences + int(i)});
            }
        }
    }

    void sort(std::vector<Leaf> & leaves) const {
        std::ranges::stable_sort(leaves, {}, [&](const Leaf & leaf) { return rest(leaf); });
    }

    // Which rows share a step; they are sorted by what is left of them.
    Runs arrange(std::span<const Leaf> leaves) const {
        return cheapest_runs(leaves.size(), budget_.rows_per_step, [&](size_t first, size_t last) {
            const int64_t tokens = int64_t(rest(leaves[last - 1])) * int64_t(last - first);
            const auto saves_context = [&](const Leaf & leaf) { return saves(leaf.at, leaf.done); };
            const bool possible =
                last - first == 1 || (tokens <= budget_.step_tokens &&
                                      std::none_of(leaves.begin() + first, leaves.begin() + last, saves_context));
            return possible ? cost(tokens) : impossible;
        });
    }

    // One step for several rows, padded to the length of the last, which is the longest.
    void read_together(std::span<const Leaf> rows) {
        Decode decode;
        for (int i = 0; const Leaf & leaf : rows) {
            decode.segments.push_back(last_segment(leaf, budget_.sequences + i++, rest(rows.back())));
            decode.needed_by.push_back(decode.segments.back().rows);
        }
        push(decode);
    }

    Segment last_segment(const Leaf & leaf, int sequence, int tokens) const {
        const int end = length(leaf.at);
        return {sequence, order_[leaf.at], leaf.done, end, leaf.done + tokens - end, true, range(leaf.at)};
    }

    // Decode the rest of one row, which `sequence` is for now, and read it.
    void read(Leaf leaf, int sequence) {
        const Range rows = range(leaf.at);
        const int context = context_end(leaf.at, leaf.at + 1, leaf.done, length(leaf.at) - 1);
        grow({leaf.at, leaf.at + 1, context, leaf.done, context, context}, sequence, {rows});
        leaf.done = context;
        const std::vector<int> ends = pieces(leaf.done, length(leaf.at));
        if (ends.size() > 1) {
            extend(rows, leaf.done, ends[ends.size() - 2], sequence, {rows});
            leaf.done = ends[ends.size() - 2];
        }
        push({{last_segment(leaf, sequence, rest(leaf))}, {rows}});
    }

    // Decode tokens [begin, end) that `rows` share.
    void extend(Range rows, int begin, int end, int sequence, const std::vector<Range> & needed_by) {
        for (const int piece_end : pieces(begin, end)) {
            push({{{sequence, order_[rows.first], begin, piece_end, 0, false, rows}}, needed_by});
            begin = piece_end;
        }
    }

    // Where to cut tokens [begin, end) into even pieces no longer than a step: the end of each. All but the last are
    // whole tiles.
    std::vector<int> pieces(int begin, int end) const {
        std::vector<int> ends;
        const int n = divided_up(end - begin, budget_.step_tokens);
        const int tiles = divided_up(end - begin, budget_.tile);
        for (int i = 1; i <= n; ++i) {
            ends.push_back(std::min(end, begin + divided_up(int64_t(tiles) * i, n) * budget_.tile));
        }
        return ends;
    }

    // What it costs to decode so many tokens of one sequence, or of several in one step.
    int64_t cost(int64_t tokens) const {
        return int64_t(divided_up(tokens, budget_.step_tokens)) * budget_.step_cost +
               int64_t(divided_up(tokens, budget_.tile)) * budget_.tile;
    }

    static Range range(size_t at) { return {int(at), int(at) + 1}; }

    int length(size_t at) const { return int(rows_[order_[at]].size()); }

    // Whether the context of a row ends after `done`, far enough to be saved.
    bool saves(size_t at, int done) const {
        return !contexts_.lengths.empty() && contexts_.lengths[order_[at]] - done >= budget_.min_step_tokens;
    }

    // Tokens of a step that decodes what is left of a row, padding included.
    int rest(const Leaf & leaf) const { return std::max(budget_.min_step_tokens, length(leaf.at) - leaf.done); }

    void push(const Decode & decode) {
        for (const Segment & s : decode.segments) {
            plan_.decoded_tokens += s.end - s.begin;
            plan_.padded_tokens += s.padding;
        }
        plan_.steps.push_back(decode);
    }

    // A sequence that holds no tokens yet needs no fork.
    void fork(int source, int tokens, int target) {
        if (tokens > 0) {
            plan_.steps.push_back(Fork{source, target});
        }
    }

    std::span<const Row> rows_;
    const Budget budget_;
    const Contexts & contexts_;
    Plan plan_;
    std::vector<int> & order_;  // distinct rows, sorted
    std::vector<int> shared_;   // shared_[i]: tokens that order_[i] and order_[i + 1] share
    int used_ = 0;              // sequences of inner nodes, the lowest
};

}  // namespace

Plan make_plan(std::span<const Row> rows, const Budget & budget, const Contexts & contexts) {
    return Planner(rows, budget, contexts).run();
}

}  // namespace decider
