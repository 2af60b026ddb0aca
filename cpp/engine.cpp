#include "engine.h"

#include "backend.h"
#include "context_cache.h"
#include "errors.h"

#include <ggml-cpu.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

namespace decider {
namespace {

// Sequences that live at once: rows shared by evaluations, a state, its questions' common text, a score's levels, a
// row.
constexpr int tree_sequences = 5;

// Below eight tokens llama.cpp's CPU matrix products take other kernels; from eight on a token's result does not depend
// on how many others the step holds (flash attention off, weights not repacked). tests/test_exactness.py holds this.
constexpr int exact_min_step = 8;

constexpr int largest_step = 512;
constexpr int smallest_step = 64;

// A shorter context is decoded sooner than its copy would pay for the room it takes.
constexpr int shortest_cached_context = 128;

// Without flash attention a step needs heads x step x cells floats; a step shorter than 512 costs a CPU almost no
// speed.
constexpr int64_t attention_scratch_bytes = 64 << 20;

struct ContextDeleter {
    void operator()(llama_context * context) const { llama_free(context); }
};

// ggml's thread pool lives in the CPU module, which is loaded at run time: its functions are looked up by name.
class ThreadPool {
  public:
    explicit ThreadPool(int threads) {
        ggml_backend_reg_t cpu = ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
        const auto make = reinterpret_cast<decltype(&ggml_threadpool_new)>(
            ggml_backend_reg_get_proc_address(cpu, "ggml_threadpool_new"));
        free_ = reinterpret_cast<decltype(&ggml_threadpool_free)>(
            ggml_backend_reg_get_proc_address(cpu, "ggml_threadpool_free"));
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
class Batch {
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

double log_normalizer(const float * logits, int n) {
    const float top = *std::max_element(logits, logits + n);
    double sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += std::exp(logits[i] - top);
    }
    return top + std::log(sum);
}

// What one row's last token says.
struct Readout {
    int label_count = 0;
    std::vector<float> logits;
    double normalizer = 0;
};

int step_tokens_for(const Model & model, int cells) {
    if (!model.exact() || model.on_gpu()) {
        return largest_step;
    }
    const int64_t per_token = int64_t(std::max(1, model.attention_heads())) * cells * sizeof(float);
    const int64_t fits = attention_scratch_bytes / per_token / 32 * 32;
    return static_cast<int>(std::clamp<int64_t>(fits, smallest_step, largest_step));
}

}  // namespace

struct Job {
    explicit Job(Request r) : request(std::move(r)) {}
    const Request request;
    std::atomic<bool> cancelled = false;
    // Guarded by the engine's mutex:
    bool done = false;
    Evaluation evaluation;
    std::exception_ptr failure;

    bool late() const { return request.deadline && Clock::now() >= *request.deadline; }
};

struct Engine::State {
    State(std::shared_ptr<const Model> m, const EngineOptions & options);
    void check(const Request & request) const;
    void work();
    void finish(Job & job, std::exception_ptr failure);
    void throw_if_stopped() const;
    Evaluation run(const Request & request);
    void read_group(const Request & request, const std::vector<Row> & rows, const std::vector<int> & members,
                    const ContextCache::Entry * entry, std::vector<Readout> & readouts, Evaluation & evaluation);
    bool worth_caching(int context) const;
    bool restore(const ContextCache::Entry & entry);
    void save(const Save & step, Row row);
    void decode(const Decode & step, const std::vector<Row> & rows, std::vector<Readout> & readouts);

    const std::shared_ptr<const Model> model;
    const pid_t process = getpid();
    Budget budget;
    int context_tokens;  // longest row
    int cells;           // what the context holds
    std::unique_ptr<ThreadPool> threads;
    std::unique_ptr<llama_context, ContextDeleter> context;
    llama_memory_t memory = nullptr;
    Batch batch;
    ContextCache cache;
    CacheInfo cache_info{};  // guarded by mutex

    std::mutex close_mutex;
    std::mutex mutex;
    std::condition_variable wake;  // the owner thread: something is queued, or closing
    std::condition_variable done;  // callers: a job ended
    std::deque<std::shared_ptr<Job>> queue;
    std::atomic<Job *> running = nullptr;
    std::atomic<bool> closing = false;
    std::thread owner;  // last: it starts when everything else stands
};

Engine::State::State(std::shared_ptr<const Model> m, const EngineOptions & options)
    : model(std::move(m)), cache(options.context_cache_bytes) {
    const int parallel = model->exact() ? 1 : std::max(1, options.parallel_rows);
    context_tokens = options.context_tokens;
    if (model->trained_context() > 0) {
        context_tokens = std::min(context_tokens, model->trained_context());
    }
    const int step = step_tokens_for(*model, context_tokens);
    budget = {step, model->exact() ? exact_min_step : 1, tree_sequences + parallel - 1, parallel};
    // Beside the longest row there is room for its padding, or for the other rows of its step.
    cells = context_tokens + (parallel > 1 ? step : exact_min_step);

    threads = std::make_unique<ThreadPool>(options.threads);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = cells;
    params.n_batch = step;
    params.n_ubatch = step;
    params.n_seq_max = budget.sequences;
    params.n_outputs_max = budget.sequences;
    params.n_threads = options.threads;
    params.n_threads_batch = options.threads;
    params.kv_unified = true;
    if (llama_model_ftype(model->get()) == LLAMA_FTYPE_ALL_F32) {  // keys and values as precise as the weights
        params.type_k = params.type_v = GGML_TYPE_F32;
    }
    params.flash_attn_type =
        model->exact() && !model->on_gpu() ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_AUTO;
    params.no_perf = true;
    params.abort_callback = [](void * data) {
        const State & state = *static_cast<State *>(data);
        const Job * job = state.running.load();
        return job && (state.closing || job->cancelled || job->late());
    };
    params.abort_callback_data = this;

    ErrorCapture errors;
    try {
        context.reset(llama_init_from_model(model->get(), params));
    } catch (const std::exception & error) {
        errors.append(error.what());
    }
    if (!context) {
        throw ModelLoadError("llama.cpp makes no context of " + std::to_string(context_tokens) +
                             " tokens: " + errors.text() + "; a smaller context_tokens needs less memory");
    }
    memory = llama_get_memory(context.get());
    if (!memory) {
        throw ModelLoadError("the model (" + model->description() + ") keeps no memory that could be shared by rows");
    }
    llama_attach_threadpool(context.get(), threads->get(), threads->get());
    owner = std::thread([this] { work(); });
}

void Engine::State::check(const Request & request) const {
    if (request.row_ends.size() != request.label_counts.size() || request.row_ends.size() != request.contexts.size() ||
        (request.row_ends.empty() ? 0 : request.row_ends.back()) != int64_t(request.tokens.size())) {
        throw InvalidRequest("row_ends, label_counts, contexts and tokens do not describe the same rows");
    }
    int64_t begin = 0;
    for (size_t i = 0; i < request.row_ends.size(); ++i) {
        const int64_t length = request.row_ends[i] - begin;
        begin = request.row_ends[i];
        const std::string row = "row " + std::to_string(i);
        if (length < 1) {
            throw InvalidRequest(row + " is empty");
        }
        if (length > context_tokens) {
            throw PayloadTooLarge(
                row + " has " + std::to_string(length) + " tokens; the context holds " + std::to_string(context_tokens),
                length, context_tokens);
        }
        if (request.contexts[i] < 0 || request.contexts[i] >= length) {
            throw InvalidRequest(row + " has a context that is no proper part of it");
        }
        if (request.label_counts[i] < 1 || request.label_counts[i] > int(model->labels().size())) {
            throw InvalidRequest(row + " asks for " + std::to_string(request.label_counts[i]) +
                                 " labels; the vocabulary holds " + std::to_string(model->labels().size()));
        }
    }
    const int n = model->vocabulary_size();
    if (std::ranges::any_of(request.tokens, [&](Token t) { return t < 0 || t >= n; })) {
        throw InvalidRequest("a token id lies outside the vocabulary of " + std::to_string(n));
    }
}

void Engine::State::work() {
    std::unique_lock lock(mutex);
    while (true) {
        wake.wait(lock, [&] { return closing || !queue.empty(); });
        if (closing) {
            return;
        }
        const std::shared_ptr<Job> job = queue.front();
        queue.pop_front();
        running = job.get();
        lock.unlock();
        Evaluation evaluation;
        std::exception_ptr failure;
        try {
            evaluation = run(job->request);
        } catch (const Error &) {
            failure = std::current_exception();
        } catch (const std::exception & error) {
            failure = std::make_exception_ptr(BackendError(std::string("llama.cpp failed: ") + error.what()));
        }
        if (failure) {
            llama_memory_clear(memory, true);  // what a stopped or failed step left behind must not reach the next call
        }
        lock.lock();
        running = nullptr;
        cache_info = {cache.size(), cache.bytes()};
        job->evaluation = std::move(evaluation);
        finish(*job, failure);
    }
}

void Engine::State::finish(Job & job, std::exception_ptr failure) {
    job.failure = failure;
    job.done = true;
    done.notify_all();
}

void Engine::State::throw_if_stopped() const {
    const Job & job = *running.load();
    if (closing) {
        throw Closed("the model was closed while the call ran");
    }
    if (job.cancelled) {
        throw Cancelled("the call was cancelled");
    }
    if (job.late()) {
        throw DeadlineExceeded("the deadline passed while the model ran");
    }
}

Evaluation Engine::State::run(const Request & request) {
    std::vector<Row> rows;
    int64_t begin = 0;
    for (const int64_t end : request.row_ends) {
        rows.emplace_back(request.tokens.data() + begin, end - begin);
        begin = end;
    }
    // Rows that start with the same cached context are read together; those that start with none are one tree.
    std::map<std::shared_ptr<const ContextCache::Entry>, std::vector<int>> groups;
    for (size_t i = 0; i < rows.size(); ++i) {
        groups[cache.find(rows[i])].push_back(int(i));
    }
    std::vector<Readout> readouts(rows.size());
    Evaluation evaluation;
    for (const auto & [entry, members] : groups) {
        read_group(request, rows, members, entry.get(), readouts, evaluation);
    }
    for (size_t i = 0; i < rows.size(); ++i) {
        const std::vector<float> & read = readouts[i].logits;
        evaluation.logits.insert(evaluation.logits.end(), read.begin(), read.begin() + request.label_counts[i]);
        evaluation.log_normalizers.push_back(readouts[i].normalizer);
    }
    return evaluation;
}

void Engine::State::read_group(const Request & request, const std::vector<Row> & rows, const std::vector<int> & members,
                               const ContextCache::Entry * entry, std::vector<Readout> & readouts,
                               Evaluation & evaluation) {
    std::vector<Row> group;
    Contexts contexts;
    for (const int i : members) {
        group.push_back(rows[i]);
        contexts.lengths.push_back(worth_caching(request.contexts[i]) ? request.contexts[i] : 0);
    }
    llama_memory_clear(memory, false);
    if (entry && restore(*entry)) {
        contexts.restored = int(entry->tokens.size());
        evaluation.reused_tokens += contexts.restored;
    }
    const Plan plan = make_plan(group, budget, contexts);
    std::vector<Readout> read(group.size());
    for (size_t i = 0; i < group.size(); ++i) {  // equal rows are read once, for the one that wants the most labels
        int & count = read[plan.same_as[i]].label_count;
        count = std::max(count, request.label_counts[members[i]]);
    }
    for (const Step & step : plan.steps) {
        throw_if_stopped();
        if (const auto * fork = std::get_if<Fork>(&step)) {
            llama_memory_seq_cp(memory, fork->source, fork->target, -1, -1);
        } else if (const auto * drop = std::get_if<Drop>(&step)) {
            llama_memory_seq_rm(memory, drop->sequence, -1, -1);
        } else if (const auto * keep = std::get_if<Save>(&step)) {
            save(*keep, group[keep->row]);
        } else {
            decode(std::get<Decode>(step), group, read);
        }
    }
    for (size_t i = 0; i < group.size(); ++i) {
        readouts[members[i]] = read[plan.same_as[i]];
    }
    evaluation.decoded_tokens += plan.decoded_tokens;
    evaluation.padded_tokens += plan.padded_tokens;
}

bool Engine::State::worth_caching(int context) const {
    // A sliding window drops old cells from a saved state, and a restored one would lie elsewhere than a decoded one.
    const int window = llama_model_n_swa(model->get());
    return cache.enabled() && context >= shortest_cached_context && (window <= 0 || context <= window);
}

bool Engine::State::restore(const ContextCache::Entry & entry) {
    if (llama_state_seq_set_data(context.get(), entry.state.data(), entry.state.size(), 0) == entry.state.size()) {
        return true;
    }
    llama_memory_clear(memory, true);
    return false;
}

void Engine::State::save(const Save & step, Row row) {
    const size_t size = llama_state_seq_get_size(context.get(), step.sequence);
    if (!cache.fits(size)) {
        return;
    }
    std::vector<uint8_t> state(size);
    if (llama_state_seq_get_data(context.get(), state.data(), size, step.sequence) == size) {
        cache.put(row.first(step.tokens), std::move(state));
    }
}

void Engine::State::decode(const Decode & step, const std::vector<Row> & rows, std::vector<Readout> & readouts) {
    batch.clear();
    std::vector<std::pair<int, int>> reads;  // place in the batch, row
    for (const Segment & s : step.segments) {
        for (int i = s.begin; i < s.end; ++i) {
            batch.add(rows[s.row][i], i, s.sequence, s.read && i + 1 == s.end);
        }
        if (s.read) {
            reads.emplace_back(batch.size() - 1, s.row);
        }
        for (int i = 0; i < s.padding; ++i) {
            batch.add(0, s.end + i, s.sequence, false);
        }
        if (s.sequence >= budget.sequences || s.end + s.padding > cells) {
            throw BackendError("a decode step leaves the context's limits");  // llama.cpp would abort the process
        }
    }
    if (batch.size() > budget.step_tokens) {
        throw BackendError("a decode step is longer than the context's batch");
    }
    const int32_t code = llama_decode(context.get(), batch.view());
    if (code == 2) {
        throw_if_stopped();
    }
    if (code != 0) {
        throw BackendError("llama_decode answered " + std::to_string(code) +
                           (code == 1 ? ": no room in the context's memory" : ": the step could not be computed"));
    }
    const int n = model->vocabulary_size();
    for (const auto & [place, row] : reads) {
        const float * logits = llama_get_logits_ith(context.get(), place);
        if (!logits) {
            throw BackendError("llama.cpp returned no logits for a row");
        }
        const double normalizer = log_normalizer(logits, n);
        if (!std::isfinite(normalizer)) {
            throw BackendError("the model's logits are not finite; the weights or the device are faulty");
        }
        readouts[row].normalizer = normalizer;
        for (int i = 0; i < readouts[row].label_count; ++i) {
            readouts[row].logits.push_back(logits[model->labels()[i]]);
        }
    }
}

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions & options)
    : state_(std::make_unique<State>(std::move(model), options)) {}

Engine::~Engine() {
    if (state_->process != getpid()) {
        (void)state_.release();  // the owner thread stayed in the parent; there is nothing here to stop or free
        return;
    }
    close();
}

void Engine::check_process() const {
    if (state_->process != getpid()) {
        throw BackendError(
            "this process was forked after the model was loaded and has no engine thread; "
            "load the model in the child, or start processes with the 'spawn' method");
    }
}

std::shared_ptr<Job> Engine::submit(Request request) {
    check_process();
    state_->check(request);
    auto job = std::make_shared<Job>(std::move(request));
    {
        const std::lock_guard lock(state_->mutex);
        if (state_->closing) {
            throw Closed("the model is closed; make a new Decider");
        }
        state_->queue.push_back(job);
    }
    state_->wake.notify_one();
    return job;
}

bool Engine::wait(const std::shared_ptr<Job> & job, Clock::duration patience) {
    State & s = *state_;
    std::unique_lock lock(s.mutex);
    auto until = Clock::now() + patience;
    if (job->request.deadline && std::ranges::find(s.queue, job) != s.queue.end()) {
        until = std::min(until, *job->request.deadline);  // a running job ends itself
    }
    s.done.wait_until(lock, until, [&] { return job->done; });
    const auto queued = std::ranges::find(s.queue, job);
    if (queued != s.queue.end() && (job->cancelled || job->late())) {
        s.queue.erase(queued);
        s.finish(*job, job->cancelled ? std::make_exception_ptr(Cancelled("the call was cancelled while it was queued"))
                                      : std::make_exception_ptr(DeadlineExceeded("the deadline passed in the queue")));
    }
    return job->done;
}

void Engine::cancel(const std::shared_ptr<Job> & job) {
    job->cancelled = true;
}

Evaluation Engine::take(const std::shared_ptr<Job> & job) {
    const std::lock_guard lock(state_->mutex);
    if (job->failure) {
        std::rethrow_exception(job->failure);
    }
    return std::move(job->evaluation);
}

void Engine::close() {
    State & s = *state_;
    if (s.process != getpid()) {
        return;
    }
    const std::lock_guard only_one(s.close_mutex);
    {
        const std::lock_guard lock(s.mutex);
        s.closing = true;
        for (const auto & job : s.queue) {
            s.finish(*job, std::make_exception_ptr(Closed("the model was closed before the call ran")));
        }
        s.queue.clear();
    }
    s.wake.notify_all();
    if (s.owner.joinable()) {
        s.owner.join();
    }
    s.context.reset();
    s.threads.reset();
}

int Engine::step_tokens() const {
    return state_->budget.step_tokens;
}
int Engine::min_step_tokens() const {
    return state_->budget.min_step_tokens;
}
int Engine::sequences() const {
    return state_->budget.sequences;
}
int Engine::context_tokens() const {
    return state_->context_tokens;
}

CacheInfo Engine::cache_info() const {
    check_process();
    const std::lock_guard lock(state_->mutex);
    return state_->cache_info;
}

}  // namespace decider
