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

// A shorter context is decoded sooner than its copy would pay for the room it takes.
constexpr int shortest_cached_context = 128;

double log_normalizer(const float * logits, int n) {
    const float top = *std::max_element(logits, logits + n);
    double sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += std::exp(logits[i] - top);
    }
    return top + std::log(sum);
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
    int restored;  // leading tokens that its rows start from
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

std::vector<Row> Request::rows() const {
    std::vector<Row> result;
    int64_t begin = 0;
    for (const int64_t end : row_ends) {
        result.emplace_back(tokens.data() + begin, end - begin);
        begin = end;
    }
    return result;
}

Reader::Reader(std::shared_ptr<const Model> model, int threads, const Shape & shape,
               std::shared_ptr<ContextCache> cache)
    : model_(std::move(model)), shape_(shape), cache_(std::move(cache)) {
    const int sequences = shape_.budget.all_sequences();
    threads_ = std::make_unique<ThreadPool>(threads);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = shape_.separate ? shape_.cells * sequences : shape_.cells;
    params.n_batch = shape_.budget.step_tokens;
    params.n_ubatch = shape_.budget.step_tokens;
    params.n_seq_max = sequences;
    params.n_outputs_max = sequences;
    params.n_threads = threads;
    params.n_threads_batch = threads;
    params.kv_unified = !shape_.separate;
    params.type_k = params.type_v = model_->cache_type();
    params.flash_attn_type = shape_.flash_attention ? LLAMA_FLASH_ATTN_TYPE_AUTO : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.no_perf = true;
    params.abort_callback = [](void * data) {
        Listener * listener = static_cast<Reader *>(data)->listener_;
        return listener && listener->must_stop();
    };
    params.abort_callback_data = this;

    const std::string reason = run_alone([&] { context_.reset(llama_init_from_model(model_->get(), params)); });
    if (!context_) {
        throw ModelLoadError("llama.cpp makes no context of " + std::to_string(params.n_ctx) + " tokens on " +
                             model_->device() + ": " + reason +
                             "; a smaller context_tokens, or fewer parallel_questions, need less memory");
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
        if (length > shape_.context_tokens) {
            throw PayloadTooLarge(row + " has " + std::to_string(length) + " tokens; the context holds " +
                                      std::to_string(shape_.context_tokens),
                                  length, shape_.context_tokens);
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

int64_t Reader::known_tokens(const Request & request) const {
    int64_t tokens = 0;
    for (const Row row : request.rows()) {
        if (const auto entry = cache_->find(row, this)) {
            tokens += int64_t(entry->tokens.size());
        }
    }
    return tokens;
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
    const std::vector<Row> rows = request.rows();
    for (size_t i = 0; i < rows.size(); ++i) {
        const Row row = rows[i];
        auto entry = cache_->find(row, this);
        const int short_of_context = request.contexts[i] - (entry ? int(entry->tokens.size()) : 0);
        if (request.pin && short_of_context > 0 && short_of_context < shape_.budget.min_step_tokens) {
            // a step that short cannot end at the context's end: start from farther back
            entry = cache_->find(row.first(std::max(0, request.contexts[i] - shape_.budget.min_step_tokens + 1)), this);
        }
        const int restored = entry ? int(entry->tokens.size()) : 0;
        Group & group = groups.try_emplace(entry, Group{request, restored, {}, {}, {}, {}}).first->second;
        group.rows.push_back(row);
        group.numbers.push_back(int(i));
    }
    int64_t tokens = 0;
    for (auto & [entry, group] : groups) {
        plan(group);
        tokens += group.plan.decoded_tokens;
    }
    listener_->planned(tokens);
    for (const auto & [entry, group] : groups) {
        llama_memory_clear(memory_, false);
        if (entry) {
            cache_->use(entry);
            restore(entry->state, 0);
            listener_->reused(group.numbers, group.restored);
            keep(entry, request);
        }
        run_plan(group);
    }
}

void Reader::plan(Group & group) const {
    Contexts contexts{{}, group.restored};
    for (const int number : group.numbers) {
        const int context = group.request.contexts[number];
        const bool worth = group.request.pin || (cache_->enabled() && context >= shortest_cached_context);
        contexts.lengths.push_back(worth && can_copy(context) ? context : 0);
    }
    group.plan = make_plan(group.rows, shape_.budget, contexts);
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
    std::map<int, int> held;  // tokens by sequence
    if (group.restored > 0) {
        held[0] = group.restored;
    }
    for (const Step & step : group.plan.steps) {
        if (listener_->must_stop()) {
            throw Stopped();
        }
        if (const auto * fork = std::get_if<Fork>(&step)) {
            llama_memory_seq_cp(memory_, fork->source, fork->target, -1, -1);
            if (held.contains(fork->source)) {  // not where nobody wants it any more
                held[fork->target] = held[fork->source];
            }
        } else if (const auto * drop = std::get_if<Drop>(&step)) {
            llama_memory_seq_rm(memory_, drop->sequence, -1, -1);
            held.erase(drop->sequence);
        } else if (const auto * keep = std::get_if<Save>(&step)) {
            save(*keep, group);
            continue;
        } else {
            const Decode & now = std::get<Decode>(step);
            const bool decoded = decode(now, group);
            for (const Segment & s : now.segments) {
                left -= s.end - s.begin;
                if (decoded) {
                    held[s.sequence] = s.end + s.padding;
                }
            }
        }
        if (left > 0 && held.size() <= 1 && (held.empty() || can_copy(held.begin()->second)) &&
            listener_->yields(left)) {
            suspend(held.empty() ? std::nullopt : std::optional(held.begin()->first));
        }
    }
}

// While one sequence is all there is, a copy of it is enough to go on from later, with the same bits.
void Reader::suspend(std::optional<int> sequence) {
    const std::vector<uint8_t> state = sequence ? copy_state(*sequence) : std::vector<uint8_t>{};
    listener_->serve_others();
    llama_memory_clear(memory_, false);
    if (sequence) {
        restore(state, *sequence);
    }
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

// Into an empty memory.
void Reader::restore(std::span<const uint8_t> state, int sequence) {
    if (llama_state_seq_set_data(context_.get(), state.data(), state.size(), sequence) != state.size()) {
        throw BackendError("llama.cpp does not take back a sequence's state");
    }
}

void Reader::save(const Save & step, const Group & group) {
    const bool fits = cache_->fits(llama_state_seq_get_size(context_.get(), step.sequence));
    if (group.wanted(step.rows, *listener_).empty() || !(fits || group.request.pin)) {
        return;
    }
    keep(cache_->put({group.rows[step.row].first(step.tokens), copy_state(step.sequence), this}), group.request);
}

void Reader::keep(const std::shared_ptr<const ContextCache::Entry> & context, const Request & request) {
    if (request.pin) {
        cache_->pin(context);
        listener_->pinned(context);
    }
}

// Returns whether it was: not where nobody wants it any more. One row that is wanted is enough for the whole step:
// without the others llama.cpp would cut it elsewhere.
bool Reader::decode(const Decode & step, const Group & group) {
    const auto is_unwanted = [&](Range rows) { return group.wanted(rows, *listener_).empty(); };
    if (std::ranges::all_of(step.needed_by, is_unwanted)) {
        return false;
    }
    std::vector<std::vector<int>> wanted;
    for (const Segment & s : step.segments) {
        wanted.push_back(group.wanted(s.rows, *listener_));
    }
    batch_->clear();
    const bool second_output = model_->exact() && wanted.size() == 1;  // before the row's own, or behind it
    std::vector<int> places;                                           // of the segments' last tokens in the batch
    for (size_t segment = 0; segment < wanted.size(); ++segment) {
        const Segment & s = step.segments[segment];
        if (s.sequence >= shape_.budget.all_sequences() || s.end + s.padding > shape_.cells) {
            throw BackendError("a decode step leaves the context's limits");  // llama.cpp would abort the process
        }
        for (int i = s.begin; i < s.end; ++i) {
            const bool before = second_output && s.padding == 0 && i + 2 == s.end;
            batch_->add(group.rows[s.row][i], i, s.sequence, s.read && (before || i + 1 == s.end));
        }
        listener_->decoded(wanted[segment], s.end - s.begin, s.padding);
        places.push_back(batch_->size() - 1);
        for (int i = 0; i < s.padding; ++i) {
            batch_->add(0, s.end + i, s.sequence, second_output && i == 0);
        }
    }
    if (batch_->size() > shape_.budget.step_tokens) {
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
    for (size_t segment = 0; segment < wanted.size(); ++segment) {
        if (!step.segments[segment].read || wanted[segment].empty()) {
            continue;
        }
        const float * logits = llama_get_logits_ith(context_.get(), places[segment]);
        if (!logits) {
            throw BackendError("llama.cpp returned no logits for a row");
        }
        const double normalizer = log_normalizer(logits, model_->vocabulary_size());
        if (!std::isfinite(normalizer)) {
            throw BackendError("the model's logits are not finite; the weights or the device are faulty");
        }
        for (const int row : wanted[segment]) {
            Readout readout{{}, normalizer};
            for (int i = 0; i < group.request.label_counts[row]; ++i) {
                readout.logits.push_back(logits[model_->labels()[i]]);
            }
            listener_->read(row, std::move(readout));
        }
    }
    return true;
}

}  // namespace decider
