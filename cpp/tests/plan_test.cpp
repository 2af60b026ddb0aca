// Plans of random rows, carried out on simulated sequences; and a few worked out by hand.
#include "plan.h"

#include "check.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

using namespace decider;

namespace {

using Tokens = std::vector<Token>;

std::vector<Row> views(const std::vector<Tokens> & rows) {
    return {rows.begin(), rows.end()};
}

int length(const Segment & s) {
    return s.end - s.begin + s.padding;
}

// Carries out a plan as the engine would, on sequences that are lists of cells, and checks every step.
class Simulator {
  public:
    Simulator(const std::vector<Tokens> & rows, const Budget & budget, const Contexts & contexts = {})
        : rows_(rows), budget_(budget), contexts_(contexts), plan_(make_plan(views(rows), budget, contexts)) {
        for (int i = 0; i < contexts.restored; ++i) {  // it is there from the start
            live_[0].push_back({next_cell_++, rows[0][i], false, {{0, int(plan_.order.size())}}});
        }
        for (const Step & step : plan_.steps) {
            std::visit([&](const auto & s) { run(s); }, step);
            CHECK(int(live_.size()) <= budget.all_sequences());
        }
        CHECK(live_.empty());
        CHECK(plan_.decoded_tokens == decoded_);
        CHECK(plan_.padded_tokens == padded_);
        check_reads();
    }

    const Plan & plan() const { return plan_; }
    const std::map<Tokens, int> & saved() const { return saved_; }

  private:
    struct Cell {
        int id;
        Token token;
        bool padding;
        std::vector<Range> needed_by;  // what its step says
    };

    void run(const Fork & fork) {
        CHECK(live_.contains(fork.source));
        CHECK(!live_.contains(fork.target));
        CHECK(fork.target >= 0 && fork.target < budget_.all_sequences());
        live_[fork.target] = live_[fork.source];
    }

    void run(const Save & save) {
        CHECK(live_.contains(save.sequence));
        CHECK(save.tokens == contexts_.lengths[save.row]);
        const Row context = Row(rows_[save.row]).first(save.tokens);
        CHECK(std::ranges::equal(live_[save.sequence], context, {}, &Cell::token));
        CHECK(std::ranges::none_of(live_[save.sequence], &Cell::padding));
        for (int place = save.rows.first; place < save.rows.last; ++place) {
            CHECK(std::ranges::equal(context, Row(rows_[plan_.order[place]]).first(save.tokens)));
        }
        ++saved_[{context.begin(), context.end()}];
    }

    void run(const Drop & drop) { CHECK(live_.erase(drop.sequence) == 1); }

    void run(const Decode & decode) {
        int tokens = 0;
        std::set<int> touched;
        CHECK(!decode.segments.empty());
        CHECK(int(decode.segments.size()) <= budget_.rows_per_step);
        for (const Segment & s : decode.segments) {
            CHECK(s.sequence >= 0 && s.sequence < budget_.all_sequences());
            CHECK(live_.contains(s.sequence) == (s.begin > 0));
            CHECK(touched.insert(s.sequence).second);
            CHECK(s.begin < s.end && s.end <= int(rows_[s.row].size()));
            CHECK(s.padding >= 0 && (s.padding == 0 || s.read));
            CHECK(s.read == (s.end == int(rows_[s.row].size())));
            CHECK(length(s) >= budget_.min_step_tokens);
            // or llama.cpp would cut the step
            CHECK(s.sequence - decode.segments[0].sequence == int(&s - decode.segments.data()));
            CHECK(length(s) == length(decode.segments[0]));
            std::vector<Cell> & held = live_[s.sequence];
            CHECK(int(held.size()) == s.begin);
            for (int i = s.begin; i < s.end; ++i) {
                held.push_back({next_cell_++, rows_[s.row][i], false, decode.needed_by});
            }
            if (s.read) {
                ++reads_[s.row];
                CHECK(std::ranges::equal(held, rows_[s.row], {}, &Cell::token));
                CHECK(std::ranges::none_of(held, &Cell::padding));
                // a step may be left out when none of its rows is wanted: no other row may build on it
                const int place = int(std::ranges::find(plan_.order, s.row) - plan_.order.begin());
                const auto is_needed_by = [&](const Range & rows) { return rows.first <= place && place < rows.last; };
                CHECK(std::ranges::all_of(
                    held, [&](const Cell & cell) { return std::ranges::any_of(cell.needed_by, is_needed_by); }));
            }
            for (int i = 0; i < s.padding; ++i) {
                held.push_back({next_cell_++, -1, true, decode.needed_by});
            }
            tokens += length(s);
            decoded_ += s.end - s.begin;
            padded_ += s.padding;
        }
        CHECK(tokens <= budget_.step_tokens);
        check_memory();
    }

    // What the engine makes its context for: the longest row, and its padding or what lies beside it.
    void check_memory() const {
        size_t longest = 0;
        for (const Tokens & row : rows_) {
            longest = std::max(longest, row.size());
        }
        std::set<int> cells;
        for (const auto & [_, held] : live_) {
            for (const Cell & cell : held) {
                cells.insert(cell.id);
            }
        }
        CHECK(cells.size() <=
              longest + (budget_.rows_per_step > 1 ? 2 * budget_.step_tokens : budget_.min_step_tokens));
    }

    void check_reads() const {
        CHECK(plan_.same_as.size() == rows_.size());
        std::set<Tokens> distinct(rows_.begin(), rows_.end());
        CHECK(reads_.size() == distinct.size());
        for (size_t i = 0; i < rows_.size(); ++i) {
            const int same = plan_.same_as[i];
            CHECK(same <= int(i) && rows_[same] == rows_[i] && plan_.same_as[same] == same);
            CHECK(reads_.contains(same) && reads_.at(same) == 1);
        }
    }

    const std::vector<Tokens> & rows_;
    const Budget budget_;
    const Contexts contexts_;
    const Plan plan_;
    std::map<int, std::vector<Cell>> live_;
    std::map<int, int> reads_;
    std::map<Tokens, int> saved_;
    int next_cell_ = 0;
    int64_t decoded_ = 0;
    int64_t padded_ = 0;
};

size_t shared_prefix(const Tokens & a, const Tokens & b) {
    size_t n = 0;
    while (n + 1 < std::min(a.size(), b.size()) && a[n] == b[n]) {  // every row keeps its last token for itself
        ++n;
    }
    return n;
}

// Tokens that must be decoded for distinct rows when there are sequences for every branch.
int64_t fewest_tokens(std::vector<Tokens> rows, size_t done, size_t min_step) {
    if (rows.size() == 1) {
        return int64_t(rows[0].size() - done);
    }
    size_t shared = rows[0].size();
    for (const Tokens & a : rows) {
        for (const Tokens & b : rows) {
            shared = &a == &b ? shared : std::min(shared, shared_prefix(a, b));
        }
    }
    int64_t tokens = 0;
    if (shared - done >= min_step) {
        tokens += int64_t(shared - done);
        done = shared;
    }
    while (!rows.empty()) {
        const Tokens first = rows[0];
        const auto others = std::stable_partition(
            rows.begin() + 1, rows.end(), [&](const Tokens & row) { return shared_prefix(first, row) > shared; });
        tokens += fewest_tokens({rows.begin(), others}, done, min_step);
        rows.erase(rows.begin(), others);
    }
    return tokens;
}

// Rows that grow from each other's prefixes over a small alphabet, so that they share and repeat a lot.
std::vector<Tokens> random_rows(std::mt19937 & random, int most_rows, int longest) {
    const auto below = [&](int n) { return int(random() % unsigned(n)); };
    std::vector<Tokens> rows(below(most_rows + 1));
    for (size_t i = 0; i < rows.size(); ++i) {
        if (i > 0 && below(5) > 0) {
            const Tokens & from = rows[below(int(i))];
            rows[i].assign(from.begin(), from.begin() + below(int(from.size()) + 1));
        }
        const int more = below(longest) + (rows[i].empty() ? 1 : 0);
        for (int j = 0; j < more; ++j) {
            rows[i].push_back(below(3));
        }
    }
    return rows;
}

void test_random_rows() {
    std::mt19937 random(1935);
    const Budget budgets[] = {{512, 8, 4, 1, 8, 1},  {16, 8, 1, 1, 8, 1},   {40, 8, 2, 1, 8, 1}, {2, 1, 1, 1, 8, 1},
                              {512, 1, 4, 8, 64, 1}, {24, 1, 1, 3, 2, 1},   {32, 8, 3, 4, 8, 1}, {64, 4, 64, 1, 8, 1},
                              {64, 8, 4, 4, 8, 16},  {128, 8, 3, 6, 40, 16}};
    for (const Budget & budget : budgets) {
        for (int i = 0; i < 1500 && failed_checks < 20; ++i) {
            const std::vector<Tokens> rows = random_rows(random, i % 10 ? 12 : 40, i % 3 ? 12 : 60);
            const int64_t decoded = Simulator(rows, budget).plan().decoded_tokens;
            const std::set<Tokens> distinct(rows.begin(), rows.end());
            int64_t most = 0;
            for (const Tokens & row : distinct) {
                most += int64_t(row.size());
            }
            const int64_t fewest =
                rows.empty() ? 0 : fewest_tokens({distinct.begin(), distinct.end()}, 0, budget.min_step_tokens);
            CHECK(fewest <= decoded && decoded <= most);
            CHECK(budget.sequences < 64 || decoded == fewest);
        }
    }
}

// Every question about a state has the state as its context; a state is as long as it likes and may start another.
void test_random_contexts() {
    std::mt19937 random(2026);
    const Budget budgets[] = {
        {512, 8, 4, 1, 8, 1}, {16, 8, 1, 1, 8, 1}, {512, 1, 4, 8, 64, 1}, {512, 4, 64, 1, 8, 1}, {64, 8, 4, 4, 8, 16}};
    for (const Budget & budget : budgets) {
        for (int i = 0; i < 1500 && failed_checks < 20; ++i) {
            std::vector<Tokens> rows;
            Contexts contexts;
            for (const Tokens & state : random_rows(random, 4, 40)) {
                for (int question = int(random() % 4); question >= 0; --question) {
                    rows.push_back(state);
                    for (int more = int(random() % 12); more >= 0; --more) {
                        rows.back().push_back(Token(random() % 3));
                    }
                    contexts.lengths.push_back(random() % 8 ? int(state.size()) : 0);
                }
            }
            if (!rows.empty() && i % 2) {  // what all of them share may have been restored
                const auto shortest = std::ranges::min_element(rows, {}, &Tokens::size);
                contexts.restored = int(random() % shortest->size());
                for (Tokens & row : rows) {
                    std::copy_n(shortest->begin(), contexts.restored, row.begin());
                }
            }
            const Simulator run(rows, budget, contexts);
            for (const auto & [context, _] : run.saved()) {
                CHECK(int(context.size()) - contexts.restored >= budget.min_step_tokens);
            }
        }
    }
}

Tokens counted(int count, Token last = -1) {
    Tokens tokens(count);
    for (int i = 0; i < count; ++i) {
        tokens[i] = i;
    }
    if (last >= 0) {
        tokens.back() = last;
    }
    return tokens;
}

Tokens joined(Tokens head, const Tokens & tail) {
    head.insert(head.end(), tail.begin(), tail.end());
    return head;
}

// Lengths of the decode steps of a plan, padding included.
std::vector<int> step_lengths(const Plan & plan) {
    std::vector<int> lengths;
    for (const Step & step : plan.steps) {
        if (const auto * decode = std::get_if<Decode>(&step)) {
            lengths.push_back(0);
            for (const Segment & s : decode->segments) {
                lengths.back() += length(s);
            }
        }
    }
    return lengths;
}

void check_plan(const std::vector<Tokens> & rows, const Budget & budget, int64_t decoded, int64_t padded,
                const std::vector<int> & lengths) {
    const Simulator run(rows, budget);
    CHECK(run.plan().decoded_tokens == decoded);
    CHECK(run.plan().padded_tokens == padded);
    CHECK(step_lengths(run.plan()) == lengths);
}

void test_examples() {
    const Budget exact{512, 8, 4, 1, 8, 1};
    check_plan({}, exact, 0, 0, {});
    check_plan({{7}}, exact, 1, 7, {8});
    // 20 shared tokens once, then the shorter end, of 5 tokens and 3 of padding, then 10
    check_plan({joined(counted(20), Tokens(10, 100)), joined(counted(20), Tokens(5, 200))}, exact, 35, 3, {20, 8, 10});
    // the same rows again cost nothing
    check_plan({counted(30), counted(30), counted(30)}, exact, 30, 0, {30});
    // a row that is another's beginning keeps its last token: 19 shared, then 1 and 6
    check_plan({counted(25), counted(20)}, exact, 26, 9, {19, 8, 8});
    // 7 shared tokens are too short a step: each row decodes them
    check_plan({counted(12, 100), joined(counted(7), Tokens(5, 200))}, exact, 24, 0, {12, 12});
    // a long row in even pieces, none of them a remainder
    check_plan({counted(10)}, {4, 1, 1, 1, 8, 1}, 10, 0, {4, 3, 3});
    check_plan({counted(513)}, exact, 513, 0, {257, 256});

    // Two pairs: with sequences for both branchings 10 + 2 (10 + 10 + 10), with one sequence for inner nodes the pairs
    // do not share.
    const auto leaf = [](Token branch, Token end) {
        return joined(joined(counted(10), Tokens(10, branch)), Tokens(10, end));
    };
    const std::vector<Tokens> pairs = {leaf(100, 1), leaf(100, 2), leaf(200, 1), leaf(200, 2)};
    check_plan(pairs, exact, 70, 0, {10, 10, 10, 10, 10, 10, 10});
    check_plan(pairs, {512, 8, 1, 1, 8, 1}, 90, 0, {10, 20, 20, 20, 20});

    // Leaves of 1, 1, 1 and 3 tokens below one node: all in one step where a step costs much, the longer one apart
    // where it costs less than the padding, and never more than the budget says.
    const std::vector<Tokens> leaves = {counted(20, 100), counted(20, 101), counted(20, 102), counted(22, 103)};
    check_plan(leaves, {512, 1, 4, 8, 64, 1}, 25, 6, {19, 12});
    check_plan(leaves, {512, 1, 4, 8, 5, 1}, 25, 0, {19, 3, 3});
    check_plan(leaves, {512, 1, 4, 3, 64, 1}, 25, 0, {19, 3, 3});
    check_plan(leaves, {19, 8, 4, 4, 8, 1}, 25, 26, {19, 16, 16});

    // States that share nothing, two questions each: states and questions of one length share steps; of a state that is
    // longer, its questions decode the rest where that is cheaper than a step.
    const auto questions = [](const Tokens & state) {
        return std::vector<Tokens>{joined(state, Tokens(10, 1)), joined(state, Tokens(10, 2))};
    };
    std::vector<Tokens> two_states = questions(Tokens(20, 7));
    for (const Tokens & row : questions(Tokens(20, 8))) {
        two_states.push_back(row);
    }
    check_plan(two_states, {512, 8, 4, 4, 8, 1}, 80, 0, {40, 40});
    check_plan(two_states, {512, 8, 4, 4, 8, 16}, 80, 0, {40, 40});
    check_plan(two_states, {39, 8, 4, 4, 8, 1}, 80, 0, {20, 20, 20, 20});
    check_plan(two_states, {512, 8, 4, 1, 8, 1}, 80, 0, {20, 10, 10, 20, 10, 10});
    std::ranges::for_each(std::span(two_states).last(2), [](Tokens & row) { row = joined(Tokens(4, 8), row); });
    check_plan(two_states, {512, 8, 4, 4, 8, 1}, 84, 0, {20, 24, 40});
    check_plan(two_states, {512, 8, 4, 4, 16, 1}, 88, 8, {40, 56});

    // Contexts are saved where they end, for one question as for many; one that was restored is neither decoded nor
    // saved
    const std::vector<Tokens> asked = {joined(counted(20), Tokens(9, 100)), joined(counted(20), Tokens(5, 200))};
    CHECK(Simulator(asked, exact, {{20, 20}, 0}).saved() == (std::map<Tokens, int>{{counted(20), 1}}));
    CHECK(Simulator({asked[0]}, exact, {{20}, 0}).saved() == (std::map<Tokens, int>{{counted(20), 1}}));
    const Simulator again(asked, exact, {{20, 20}, 20});
    CHECK(again.saved().empty() && again.plan().decoded_tokens == 14);
    const Simulator grown({counted(40)}, exact, {{30}, 20});
    CHECK(grown.saved() == (std::map<Tokens, int>{{counted(30), 1}}) && grown.plan().decoded_tokens == 20);
}

}  // namespace

int main() {
    test_examples();
    test_random_rows();
    test_random_contexts();
    std::printf(failed_checks ? "%d checks failed\n" : "plan: all checks passed\n", failed_checks);
    return failed_checks ? 1 : 0;
}
