// Token rows -> prefix tree -> decode steps. Pure: no llama.cpp, no threads, no globals.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace decider {

using Token = int32_t;
using Row = std::span<const Token>;

// What a plan may use.
struct Budget {
    // Most tokens of one decode step, padding included: whole tiles, at least 2 * (min_step_tokens + tile - 1).
    int step_tokens;
    int min_step_tokens;  // a shorter decode step is padded at its end, or not cut off at all; at least 1
    int sequences;        // most sequences of inner nodes that live at the same time; at least 1
    int rows_per_step;    // most rows that share one decode step, in sequences of their own, which follow those
    int step_cost;        // what a decode step costs beyond its tokens, in tokens
    int tile;             // a step takes as long as one of so many tokens, or the next multiple; at least 1

    int all_sequences() const { return sequences + rows_per_step; }
};

// Places in Plan::order.
struct Range {
    int first;
    int last;  // one past the last
};

// Decode tokens [begin, end) of `row` at the end of `sequence`, which is empty where `begin` is 0, then `padding`
// tokens that nobody reads.
struct Segment {
    int sequence;
    int row;
    int begin;
    int end;
    int padding;
    bool read;   // the row ends here: its label logits are read at token end - 1
    Range rows;  // that begin with these tokens
};

struct Decode {
    std::vector<Segment> segments;
    std::vector<Range> needed_by;  // what comes later builds on it; when none of these is wanted it may be left out
};

struct Fork {
    int source;
    int target;
};

struct Drop {
    int sequence;
};

// The sequence holds exactly the context of `row`, its first `tokens` tokens: the moment to keep a copy of its state.
struct Save {
    int sequence;
    int row;
    int tokens;
    Range rows;
};

using Step = std::variant<Decode, Fork, Drop, Save>;

// What a caller knows about its rows beyond their tokens.
struct Contexts {
    std::vector<int> lengths;  // per row: leading tokens that later calls may share; 0: not worth keeping. Empty: none
    int restored = 0;          // leading tokens that all rows share and that sequence 0 already holds
};

struct Plan {
    std::vector<Step> steps;
    std::vector<int> same_as;  // per row: the row that is decoded for it (itself, or an equal row before it)
    std::vector<int> order;    // the rows that are decoded, equal prefixes side by side
    int64_t decoded_tokens = 0;
    int64_t padded_tokens = 0;
};

// Plan the decoding of `rows` so that shared prefixes are decoded once, within `budget`.
//
// Rows form a radix tree that is walked depth first; a node's state is forked for its children and extended in place
// by the last of them. A branch that finds no free sequence is decoded without sharing below it. Every row keeps at
// least its last token for itself: a decode step then reads each row at the end of a segment of its own.
//
// Rows that share a step are padded to one length, and lie in neighbouring sequences: llama.cpp then does not cut the
// step into smaller ones. Nodes at which only rows hang are read side by side: cut at one length they share a step, and
// their rows share steps whichever node they hang at. What shares a step is what costs least, padding and the steps
// themselves together.
//
// Rows must not be empty, and no row plus its padding may exceed what the caller's memory holds. Beside the longest row
// there are never more than two steps' tokens.
Plan make_plan(std::span<const Row> rows, const Budget & budget, const Contexts & contexts = {});

}  // namespace decider
