#include "shape.h"

#include <algorithm>

namespace decider {
namespace {

// Inner nodes that live at once: what evaluations share, a state, its questions' common text, a score's levels.
constexpr int tree_sequences = 4;

// For fewer tokens llama.cpp's matrix products take other kernels (Vulkan's for eight too); from here on a token's
// result does not depend on how many others the step holds (flash attention off, weights not repacked). The last
// matrix, which takes only the outputs of a step, is kept on the other side: they are fewer, but at least two
// (reader.cpp). tests/test_exactness.py and tests/test_gpu.py hold this.
constexpr int exact_min_step_cpu = 8;
constexpr int exact_min_step_gpu = 9;

// Rows that share a step where the caller does not say. A CPU gains little from the fifth on.
constexpr int usual_rows = 8;
constexpr int exact_rows_cpu = 4;

// What a decode step costs beyond its tokens, in tokens: unpacking the weights, the last matrix, waiting for threads.
constexpr int step_cost_cpu = 12;
constexpr int step_cost_gpu = 64;

// A CPU's products of packed weights take so many tokens at a time.
constexpr int tile_cpu = 16;
constexpr int tile_gpu = 1;

constexpr int largest_step = 512;
constexpr int smallest_step = 64;

// Without flash attention a step needs heads x step x cells floats, and half of that again for their product with the
// values; a step shorter than 512 costs a CPU almost no speed.
constexpr int64_t attention_scratch_bytes = 40 << 20;

// llama.cpp gives a sequence cells of its own in these units.
constexpr int cell_unit = 256;

// Rows that share steps exactly are short: no sequence has more cells.
constexpr int most_short_cells = 1024;
constexpr double short_rows_share = 0.5;  // of the weights' size

int exact_min_step(const Model & model) {
    return model.on_gpu() ? exact_min_step_gpu : exact_min_step_cpu;
}

// Mesa's software renderer, where ggml's flash attention ends in a segmentation fault (32 tokens behind 50, say).
bool is_llvmpipe(const Model & model) {
    return model.on_gpu() && model.device_description().starts_with("llvmpipe");
}

int step_tokens_for(const Model & model, int cells) {
    if (!model.exact() || model.on_gpu()) {
        return largest_step;
    }
    const int64_t per_token = int64_t(std::max(1, model.attention_heads())) * cells * sizeof(float);
    const int64_t fits = attention_scratch_bytes / per_token / tile_cpu * tile_cpu;
    return static_cast<int>(std::clamp<int64_t>(fits, smallest_step, largest_step));
}

}  // namespace

Shape shape_for(const Model & model, int context_tokens, std::optional<int> parallel_rows) {
    Shape shape{context_tokens, 0, false, false, {}};
    if (model.trained_context() > 0) {
        shape.context_tokens = std::min(context_tokens, model.trained_context());
    }
    const bool exact = model.exact();
    const int step = step_tokens_for(model, shape.context_tokens);
    const int min_step = exact ? exact_min_step(model) : 1;
    int rows = parallel_rows.value_or(exact ? 1 : usual_rows);
    if (exact) {
        rows = std::min(rows, min_step - 1);
    }
    shape.separate = exact && rows > 1;
    shape.flash_attention = !exact && !is_llvmpipe(model);
    // Beside the longest row there is room for its padding, or for what is read beside it.
    shape.cells = shape.context_tokens + (rows > 1 && !shape.separate ? 2 * step : min_step);
    if (shape.separate) {
        shape.cells = (shape.cells + cell_unit - 1) / cell_unit * cell_unit;
    }
    shape.budget = {step,
                    min_step,
                    tree_sequences,
                    rows,
                    model.on_gpu() ? step_cost_gpu : step_cost_cpu,
                    model.on_gpu() ? tile_gpu : tile_cpu};
    return shape;
}

std::optional<Shape> short_shape_for(const Model & model, const Shape & general) {
    if (!model.exact()) {
        return std::nullopt;
    }
    const int rows = model.on_gpu() ? usual_rows : exact_rows_cpu;
    const double room = short_rows_share * double(model.size_bytes()) / (tree_sequences + rows);
    const double fits = (room - double(model.recurrent_bytes())) / double(model.cell_bytes());
    const int cells = static_cast<int>(std::clamp(fits, 0.0, double(most_short_cells))) / cell_unit * cell_unit;
    if (cells == 0) {
        return std::nullopt;
    }
    const int tokens = cells - general.budget.min_step_tokens;
    return shape_for(model, std::min(general.context_tokens, tokens), rows);
}

}  // namespace decider
