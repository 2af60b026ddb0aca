#include "reader.h"

#include "backend.h"
#include "errors.h"

#include <ggml-cpu.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

namespace decider {
namespace {

// Sequences that live at once: rows shared by evaluations, a state, its questions' common text, a score's levels, a
// row.
constexpr int tree_sequences = 5;

// For fewer tokens llama.cpp's matrix products take other kernels (Vulkan's for eight too); from here on a token's
// result does not depend on how many others the step holds (flash attention off, weights not repacked).
// tests/test_exactness.py and tests/test_gpu.py hold this.
constexpr int exact_min_step_cpu = 8;
constexpr int exact_min_step_gpu = 9;

// The same holds for the outputs of a step, which the last matrix takes: they are at least two and fewer than a step's
// tokens. More rows do not share one.
constexpr int exact_max_rows_cpu = exact_min_step_cpu - 1;
constexpr int exact_max_rows_gpu = exact_min_step_gpu - 1;

// Rows that share a step where the caller does not say. In exact mode every one has memory of its own, and a CPU gains
// little from the fifth on; together they may take so much of the weights' size.
constexpr int usual_rows = 8;
constexpr int exact_rows_cpu = 4;
constexpr double exact_rows_share = 0.25;

// What a decode step costs beyond its tokens, in tokens: launching kernels, waiting for threads, reading the weights.
constexpr int step_cost_cpu = 8;
constexpr int step_cost_gpu = 64;

constexpr int largest_step = 512;
constexpr int smallest_step = 64;

// A shorter context is decoded sooner than its copy would pay for the room it takes.
constexpr int shortest_cached_context = 128;

// Without flash attention a step needs heads x step x cells floats, and half of that again for their product with the
// values; a step shorter than 512 costs a CPU almost no speed.
constexpr int64_t attention_scratch_bytes = 40 << 20;

double log_normalizer(const float * logits, int n) {
    const float top = *std::max_element(logits, logits + n);
    double sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += std::exp(logits[i] - top);
    }
    return top + std::log(sum);
}

// Most rows that share a step, as the caller wants it or as the memory at hand suggests.
int rows_for(const Model & model, int cells, std::optional<int> wanted) {
    if (!model.exact()) {
        return wanted.value_or(usual_rows);
    }
    if (wanted) {
        return std::min(*wanted, model.on_gpu() ? exact_max_rows_gpu : exact_max_rows_cpu);
    }
    const int rows = model.on_gpu() ? usual_rows : exact_rows_cpu;
    const double bytes = double(model.cell_bytes()) * cells * (tree_sequences + rows);
    return bytes <= exact_rows_share * double(model.size_bytes()) ? rows : 1;
}

int step_tokens_for(const Model & model, int cells) {
    if (!model.exact() || model.on_gpu()) {
        return largest_step;
    }
    const int64_t per_token = int64_t(std::max(1, model.attention_heads())) * cells * sizeof(float);
    const int64_t fits = attention_scratch_bytes / per_token / 16 * 16;
    return static_cast<int>(std::clamp<int64_t>(fits, smallest_step, largest_step));
}

}  // namespace

// ggml's thread pool, which lives in the CPU module.
class Reader::ThreadPool {
  public:
    explicit ThreadPool(int threads) {
        const auto make = reinterpret_cast<decltype(&ggml_threadpool_new)>(cpu_function("ggml_threadpool_new"));
        free_ = reinterpret_cast<decltype(&ggml_threadpool_free)>(cpu_function("ggml_threadpool_free"));
        ggml_threadpool_params params = ggml_threadpool_params_default(threads);
        pool_ = make && free_ ? make(&params) : nullptr;
        if (!pool_) {
            throw BackendError("the CPU backend made no thread pool of " + std::to_string(threads) + " threads");
        }
    }
    ~ThreadPool() { free_(pool_); }
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool & operator=(const ThreadPool &) = delete;
    ggml_threadpool_t get() const { return pool_; }

  private:
    ggml_threadpool_t pool_ = nullptr;
    decltype(&ggml_threadpool_free) free_ = nullptr;
};

// The arrays behind a llama_batch of single-sequence tokens.
class Reader::Batch {
  public:
    void clear() { tokens_.clear(), positions_.clear(), sequences_.clear(), outputs_.clear(); }
    void add(Token token, int position, int sequence, bool output) {
        tokens_.push_back(token);
        positions_.push_back(position);
        sequences_.push_back(sequence);
        outputs_.push_back(output);
    }
    int size() const { return static_cast<int>(tokens_.size()); }
    llama_batch view() {
        counts_.assign(tokens_.size(), 1);
        pointers_.resize(tokens_.size());
        for (size_t i = 0; i < tokens_.size(); ++i) {
            pointers_[i] = &sequences_[i];
        }
        return {size(), tokens_.data(), nullptr, positions_.data(), counts_.data(), pointers_.data(), outputs_.data()};
    }

  private:
    std::vector<Token> tokens_;
    std::vector<llama_pos> positions_;
    std::vector<llama_seq_id> sequences_;
    std::vector<int8_t> outputs_;
    std::vector<int32_t> counts_;
    std::vector<llama_seq_id *> pointers_;
};

// The rows of a request that start from the same state, and their plan.
struct Reader::Group {
    const Request & request;
    std::vector<Row> rows;
    std::vector<int> numbers;  // of the rows, in the request
    Plan plan;
    std::vector<std::vector<int>> equal;  // per place in Plan::order: the numbers of its row and of those equal to it

    // The rows of a step that are still wanted, by number.
    std::vector<int> wanted(Range range, Listener & listener) const {
        std::vector<int> result;
        for (int at = range.first; at < range.last; ++at) {
            std::ranges::copy_if(equal[at], std::back_inserter(result), [&](int n) { return listener.wants(n); });
        }
        return result;
    }
};

Reader::Reader(std::shared_ptr<const Model> m, const EngineOptions & options)
    : model_(std::move(m)), cache_(options.context_cache_bytes) {
    context_tokens_ = options.context_tokens;
    if (model_->trained_context() > 0) {
        context_tokens_ = std::min(context_tokens_, model_->trained_context());
    }
    const bool exact = model_->exact();
    const bool gpu = model_->on_gpu();
    const int step = step_tokens_for(*model_, context_tokens_);
    const int exact_min_step = gpu ? exact_min_step_gpu : exact_min_step_cpu;
    const int rows = rows_for(*model_, context_tokens_, options.parallel_rows);
    budget_ = {step, exact ? exact_min_step : 1, tree_sequences, rows, gpu ? step_cost_gpu : step_cost_cpu};
    // Rows of one step are exact when none sees the cells of another: every sequence has its own, and a fork copies
    // them. Otherwise all share theirs: the longest row, and its padding or the other rows of its step.
    const bool separate = exact && rows > 1;
    cells_ = context_tokens_ + (rows > 1 && !separate ? step : exact_min_step);

    threads_ = std::make_unique<ThreadPool>(options.threads);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = separate ? cells_ * budget_.all_sequences() : cells_;
    params.n_batch = step;
    params.n_ubatch = step;
    params.n_seq_max = budget_.all_sequences();
    params.n_outputs_max = budget_.all_sequences();
    params.n_threads = options.threads;
    params.n_threads_batch = options.threads;
    params.kv_unified = !separate;
    params.type_k = params.type_v = model_->cache_type();
    params.flash_attn_type = model_->exact() ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_AUTO;
    params.no_perf = true;
    params.abort_callback = [](void * data) {
        Listener * listener = static_cast<Reader *>(data)->listener_;
        return listener && listener->must_stop();
    };
    params.abort_callback_data = this;

    const LogCapture log;
    std::string reason;
    try {
        context_.reset(llama_init_from_model(model_->get(), params));
        reason = log.errors();
    } catch (const std::exception & error) {
        reason = error.what();
    }
    if (!context_) {
        throw ModelLoadError("llama.cpp makes no context of " + std::to_string(context_tokens_) + " tokens: " + reason +
                             "; a smaller context_tokens needs less memory");
    }
    memory_ = llama_get_memory(context_.get());
    if (!memory_) {
        throw ModelLoadError("the model (" + model_->description() + ") keeps no memory that could be shared by rows");
    }
    llama_attach_threadpool(context_.get(), threads_->get(), threads_->get());
    batch_ = std::make_unique<Batch>();
}

Reader::~Reader() {
    context_.reset();  // before the threads that serve it
}

void Reader::check(const Request & request) const {
    if (request.row_ends.size() != request.label_counts.size() || request.row_ends.size() != request.contexts.size() ||
        (request.row_ends.empty() ? 0 : request.row_ends.back()) != int64_t(request.tokens.size())) {
        throw InvalidRequest("row_ends, label_counts, contexts and tokens do not describe the same rows");
    }
    if (request.pin && (request.row_ends.size() != 1 || request.contexts[0] < 1)) {
        throw InvalidRequest("only the context of a single row can be pinned");
    }
    int64_t begin = 0;
    for (size_t i = 0; i < request.row_ends.size(); ++i) {
        const int64_t length = request.row_ends[i] - begin;
        begin = request.row_ends[i];
        const std::string row = "row " + std::to_string(i);
        if (length < 1) {
            throw InvalidRequest(row + " is empty");
        }
        if (length > context_tokens_) {
            throw PayloadTooLarge(row + " has " + std::to_string(length) + " tokens; the context holds " +
                                      std::to_string(context_tokens_),
                                  length, context_tokens_);
        }
        if (request.contexts[i] < 0 || request.contexts[i] >= length) {
            throw InvalidRequest(row + " has a context that is no proper part of it");
        }
        if (request.label_counts[i] < 1 || request.label_counts[i] > int(model_->labels().size())) {
            throw InvalidRequest(row + " asks for " + std::to_string(request.label_counts[i]) +
                                 " labels; the vocabulary holds " + std::to_string(model_->labels().size()));
        }
    }
    const int n = model_->vocabulary_size();
    if (std::ranges::any_of(request.tokens, [&](Token t) { return t < 0 || t >= n; })) {
        throw InvalidRequest("a token id lies outside the vocabulary of " + std::to_string(n));
    }
}

void Reader::run(const Request & request, Listener & listener) {
    Listener * const suspended = std::exchange(listener_, &listener);
    try {
        read(request);
    } catch (...) {
        llama_memory_clear(memory_, true);  // what a stopped or failed step left behind must not reach the next call
        listener_ = suspended;
        throw;
    }
    listener_ = suspended;
}

void Reader::read(const Request & request) {
    // Rows that start with the same cached context are read together; those that start with none are one tree.
    std::map<std::shared_ptr<const ContextCache::Entry>, Group> groups;
    int64_t begin = 0;
    for (size_t i = 0; i < request.row_ends.size(); ++i) {
        const Row row(request.tokens.data() + begin, request.row_ends[i] - begin);
        begin = request.row_ends[i];
        auto entry = cache_.find(row);
        const int short_of_context = request.contexts[i] - (entry ? int(entry->tokens.size()) : 0);
        if (request.pin && short_of_context > 0 && short_of_context < budget_.min_step_tokens) {
            // a step that short cannot end at the context's end: start from farther back
            entry = cache_.find(row.first(std::max(0, request.contexts[i] - budget_.min_step_tokens + 1)));
        }
        Group & group = groups.try_emplace(entry, Group{request, {}, {}, {}, {}}).first->second;
        group.rows.push_back(row);
        group.numbers.push_back(int(i));
    }
    int64_t tokens = 0;
    for (auto & [entry, group] : groups) {
        plan(group, entry ? int(entry->tokens.size()) : 0);
        tokens += group.plan.decoded_tokens;
    }
    listener_->planned(tokens);
    for (const auto & [entry, group] : groups) {
        llama_memory_clear(memory_, false);
        if (entry) {
            restore(entry->state);
            listener_->reused(group.numbers, int(entry->tokens.size()));
            keep(entry, request);
        }
        run_plan(group);
    }
}

void Reader::plan(Group & group, int restored) const {
    Contexts contexts{{}, restored};
    for (const int number : group.numbers) {
        const int context = group.request.contexts[number];
        const bool worth = group.request.pin || (cache_.enabled() && context >= shortest_cached_context);
        contexts.lengths.push_back(worth && can_copy(context) ? context : 0);
    }
    group.plan = make_plan(group.rows, budget_, contexts);
    std::map<int, std::vector<int>> equal;
    for (size_t i = 0; i < group.rows.size(); ++i) {
        equal[group.plan.same_as[i]].push_back(group.numbers[i]);
    }
    for (const int row : group.plan.order) {
        group.equal.push_back(std::move(equal[row]));
    }
}

void Reader::run_plan(const Group & group) {
    int64_t left = group.plan.decoded_tokens;
    int sequences = 1;
    for (const Step & step : group.plan.steps) {
        if (listener_->must_stop()) {
            throw Stopped();
        }
        if (const auto * fork = std::get_if<Fork>(&step)) {
            llama_memory_seq_cp(memory_, fork->source, fork->target, -1, -1);
            ++sequences;
        } else if (const auto * drop = std::get_if<Drop>(&step)) {
            llama_memory_seq_rm(memory_, drop->sequence, -1, -1);
            --sequences;
        } else if (const auto * keep = std::get_if<Save>(&step)) {
            save(*keep, group);
        } else {
            const Decode & now = std::get<Decode>(step);
            decode(now, group);
            for (const Segment & s : now.segments) {
                left -= s.end - s.begin;
            }
            if (sequences == 1 && left > 0 && can_copy(now.segments[0].end) && listener_->yields(left)) {
                suspend(now.segments[0].sequence);
            }
        }
    }
}

// While one sequence is all there is, a copy of it is enough to go on from later, with the same bits.
void Reader::suspend(int sequence) {
    const std::vector<uint8_t> state = copy_state(sequence);
    listener_->serve_others();
    llama_memory_clear(memory_, false);
    restore(state);
}

bool Reader::can_copy(int tokens) const {
    // A sliding window drops old cells from a saved state, and a restored one would lie elsewhere than a decoded one.
    const int window = llama_model_n_swa(model_->get());
    return window <= 0 || tokens <= window;
}

std::vector<uint8_t> Reader::copy_state(int sequence) const {
    std::vector<uint8_t> state(llama_state_seq_get_size(context_.get(), sequence));
    if (llama_state_seq_get_data(context_.get(), state.data(), state.size(), sequence) != state.size()) {
        throw BackendError("llama.cpp does not copy a sequence's state");
    }
    return state;
}

// Into sequence 0 of an empty memory.
void Reader::restore(std::span<const uint8_t> state) {
    if (llama_state_seq_set_data(context_.get(), state.data(), state.size(), 0) != state.size()) {
        throw BackendError("llama.cpp does not take back a sequence's state");
    }
}

void Reader::save(const Save & step, const Group & group) {
    const bool fits = cache_.fits(llama_state_seq_get_size(context_.get(), step.sequence));
    if (group.wanted(step.rows, *listener_).empty() || !(fits || group.request.pin)) {
        return;
    }
    keep(cache_.put(group.rows[step.row].first(step.tokens), copy_state(step.sequence)), group.request);
}

void Reader::keep(const std::shared_ptr<const ContextCache::Entry> & context, const Request & request) {
    if (request.pin) {
        cache_.pin(context);
        listener_->pinned(context);
    }
}

void Reader::decode(const Decode & step, const Group & group) {
    std::vector<std::pair<Segment, std::vector<int>>> segments;  // that are still wanted, and the numbers of their rows
    for (const Segment & s : step.segments) {
        if (std::vector<int> rows = group.wanted(s.rows, *listener_); !rows.empty()) {
            segments.emplace_back(s, std::move(rows));
        }
    }
    if (segments.empty()) {
        return;
    }
    batch_->clear();
    const bool second_output = model_->exact() && segments.size() == 1;  // before the row's own, or behind it
    std::vector<std::pair<int, std::span<const int>>> reads;             // place in the batch, numbers of the rows
    for (const auto & [s, rows] : segments) {
        if (s.sequence >= budget_.all_sequences() || s.end + s.padding > cells_) {
            throw BackendError("a decode step leaves the context's limits");  // llama.cpp would abort the process
        }
        for (int i = s.begin; i < s.end; ++i) {
            const bool before = second_output && s.padding == 0 && i + 2 == s.end;
            batch_->add(group.rows[s.row][i], i, s.sequence, s.read && (before || i + 1 == s.end));
        }
        listener_->decoded(rows, s.end - s.begin, s.padding);
        if (s.read) {
            reads.emplace_back(batch_->size() - 1, rows);
        }
        for (int i = 0; i < s.padding; ++i) {
            batch_->add(0, s.end + i, s.sequence, second_output && i == 0);
        }
    }
    if (batch_->size() > budget_.step_tokens) {
        throw BackendError("a decode step is longer than the context's batch");
    }
    LogCapture log;
    const int32_t code = llama_decode(context_.get(), batch_->view());
    if (code == 2) {
        log.drop();  // llama.cpp calls a step that was stopped on purpose an error
        throw Stopped();
    }
    if (code != 0) {
        throw BackendError("llama_decode answered " + std::to_string(code) + ": " + log.errors());
    }
    for (const auto & [place, rows] : reads) {
        const float * logits = llama_get_logits_ith(context_.get(), place);
        if (!logits) {
            throw BackendError("llama.cpp returned no logits for a row");
        }
        const double normalizer = log_normalizer(logits, model_->vocabulary_size());
        if (!std::isfinite(normalizer)) {
            throw BackendError("the model's logits are not finite; the weights or the device are faulty");
        }
        for (const int row : rows) {
            Readout readout{{}, normalizer};
            for (int i = 0; i < group.request.label_counts[row]; ++i) {
                readout.logits.push_back(logits[model_->labels()[i]]);
            }
            listener_->read(row, std::move(readout));
        }
    }
}

}  // namespace decider
