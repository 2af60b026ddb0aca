// What a llama.cpp context is made for, and what a plan may use of it: sizes, and the conditions of exactness.
#pragma once

#include "model.h"
#include "plan.h"

#include <optional>

namespace decider {

struct Shape {
    int context_tokens;  // longest row
    int cells;           // keys and values of so many tokens: in each sequence, or in all together
    bool separate;       // every sequence has cells of its own, and a fork copies them
    bool flash_attention;
    Budget budget;
};

// For rows of up to `context_tokens`, or what the model was trained for. `parallel_rows` is how many rows share a
// decode step; none: as many as suit the mode without memory of their own.
Shape shape_for(const Model & model, int context_tokens, std::optional<int> parallel_rows);

// For short rows that share decode steps though the model is exact, beside `general`, which has a step for each. None
// where it is not exact, or they would take more than half of the weights' memory.
std::optional<Shape> short_shape_for(const Model & model, const Shape & general);

}  // namespace decider
