#include "engine.h"

#include "errors.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <thread>

namespace decider {

namespace {

// Most tokens of the rows of a wave of several calls: what a call may wait for others that came after it.
constexpr int64_t wave_tokens = 2048;

// What a long call decodes before it makes way again, and what it must have left.
constexpr int64_t slice_tokens = 512;

int64_t size_of(const Job & job) {
    return int64_t(job.request.tokens.size());
}

}  // namespace

struct Engine::State {
    State(std::shared_ptr<const Model> m, const EngineOptions & options)
        : model(std::move(m)),
          threads(options.threads),
          cache(std::make_shared<ContextCache>(options.context_cache_bytes)),
          shape(shape_for(*model, options.context_tokens, options.parallel_rows)),
          short_shape(options.parallel_rows ? std::nullopt : short_shape_for(*model, shape)),
          reader(std::make_unique<Reader>(model, threads, shape, cache)),
          owner([this] { work(); }) {}

    void work();
    void run(std::vector<std::shared_ptr<Job>> jobs, bool suspendable);
    std::vector<std::shared_ptr<Job>> take_wave(int64_t most_tokens);
    Reader & reader_for(const Request & request);
    void finish(Job & job, std::exception_ptr failure);
    void end(Job & job, std::exception_ptr failure);  // with the mutex held
    std::exception_ptr why_stopped(const Job & job) const;

    const pid_t process = getpid();
    std::mutex close_mutex;
    std::mutex mutex;
    std::condition_variable wake;  // the owner thread: something is queued, or closing
    std::condition_variable done;  // callers: a job ended
    std::deque<std::shared_ptr<Job>> queue;
    CacheInfo cache_info{};
    std::atomic<bool> closing = false;

    const std::shared_ptr<const Model> model;
    const int threads;
    const std::shared_ptr<ContextCache> cache;  // the owner thread's, as the readers are
    const Shape shape;
    const std::optional<Shape> short_shape;  // of rows that share steps beside those of `shape`
    std::unique_ptr<Reader> reader;          // null once closed
    std::unique_ptr<Reader> short_reader;
    bool no_short_reader = false;  // it could not be made
    std::thread owner;             // last: it starts when everything else stands
};

void Engine::State::work() {
    while (true) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return closing || !queue.empty(); });
        if (closing) {
            return;
        }
        lock.unlock();
        if (auto jobs = take_wave(std::numeric_limits<int64_t>::max()); !jobs.empty()) {
            run(std::move(jobs), true);
        }
    }
}

// The queued calls that are read next, in their order: the first of those that have at most so many tokens, and what
// fits beside it.
std::vector<std::shared_ptr<Job>> Engine::State::take_wave(int64_t most_tokens) {
    const std::lock_guard lock(mutex);
    std::vector<std::shared_ptr<Job>> wave;
    int64_t tokens = 0;
    for (auto job = queue.begin(); job != queue.end();) {
        const int64_t size = size_of(**job);
        const bool alone = !wave.empty() && (wave.front()->request.pin || (*job)->request.pin);
        if (size > most_tokens) {
            ++job;
            continue;
        }
        if (!wave.empty() && (alone || tokens + size > wave_tokens)) {
            break;
        }
        tokens += size;
        wave.push_back(std::move(*job));
        job = queue.erase(job);
    }
    for (const auto & job : wave) {
        job->shares = wave.size() > 1;
    }
    return wave;
}

void Engine::State::run(std::vector<std::shared_ptr<Job>> jobs, bool suspendable) {
    int64_t left = 0;
    WaveHost host;
    host.closing = [this] { return closing.load(); };
    host.finish = [this](Job & job) { finish(job, nullptr); };
    host.yields = [&, this](int64_t decoded, int64_t tokens_left) {
        if (!suspendable || decoded < slice_tokens || tokens_left < slice_tokens) {
            return false;
        }
        left = tokens_left;
        const std::lock_guard lock(mutex);
        return std::ranges::any_of(queue, [&](const auto & job) { return size_of(*job) <= left / 2; });
    };
    host.serve_others = [&, this] {
        {
            const std::lock_guard lock(mutex);
            for (const auto & job : jobs) {
                job->shares = true;
            }
        }
        if (auto others = take_wave(left / 2); !others.empty()) {
            run(std::move(others), false);
        }
    };
    Wave wave(jobs, host);
    std::exception_ptr failure;
    try {
        reader_for(wave.request()).run(wave.request(), wave);
    } catch (const Stopped &) {
    } catch (const Error &) {
        failure = std::current_exception();
    } catch (const std::exception & error) {
        failure = std::make_exception_ptr(BackendError(std::string("llama.cpp failed: ") + error.what()));
    }
    for (const auto & job : jobs) {
        if (!job->done) {
            finish(*job, failure ? failure : job->missing > 0 ? why_stopped(*job) : nullptr);
        }
    }
}

// The reader that packs rows, where they are short enough and the other one does not hold more of them. It is made when
// it is first needed.
Reader & Engine::State::reader_for(const Request & request) {
    if (!short_shape || no_short_reader) {
        return *reader;
    }
    const auto most = size_t(short_shape->context_tokens / (request.pin ? 2 : 1));  // a pin leaves room to ask
    if (std::ranges::any_of(request.rows(), [&](Row row) { return row.size() > most; })) {
        return *reader;
    }
    if (!short_reader) {
        try {
            short_reader = std::make_unique<Reader>(model, threads, *short_shape, cache);
        } catch (const Error &) {  // too little memory for it: the other one reads everything
            no_short_reader = true;
            return *reader;
        }
    }
    return reader->known_tokens(request) > short_reader->known_tokens(request) ? *reader : *short_reader;
}

void Engine::State::finish(Job & job, std::exception_ptr failure) {
    const std::lock_guard lock(mutex);
    cache_info = {cache->size(), cache->bytes()};
    if (!job.done) {  // its caller may have given up meanwhile
        end(job, failure);
    }
}

void Engine::State::end(Job & job, std::exception_ptr failure) {
    job.failure = failure;
    job.done = true;
    done.notify_all();
}

std::exception_ptr Engine::State::why_stopped(const Job & job) const {
    if (closing) {
        return std::make_exception_ptr(Closed("the model was closed while the call ran"));
    }
    if (job.cancelled) {
        return std::make_exception_ptr(Cancelled("the call was cancelled"));
    }
    return std::make_exception_ptr(DeadlineExceeded("the deadline passed while the model ran"));
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
    auto job = std::make_shared<Job>(std::move(request));
    {
        const std::lock_guard lock(state_->mutex);
        if (state_->closing) {
            throw Closed("the model is closed; make a new Decider");
        }
        state_->reader->check(job->request);
        state_->queue.push_back(job);
    }
    state_->wake.notify_one();
    return job;
}

bool Engine::wait(const std::shared_ptr<Job> & job, Clock::duration patience) {
    State & s = *state_;
    std::unique_lock lock(s.mutex);
    const auto is_queued = [&] { return std::ranges::find(s.queue, job) != s.queue.end(); };
    auto until = Clock::now() + patience;
    if (job->request.deadline && (job->shares || is_queued())) {  // a call that runs alone ends itself
        until = std::min(until, *job->request.deadline);
    }
    s.done.wait_until(lock, until, [&] { return job->done.load(); });
    if (job->done || !(job->cancelled || job->late())) {
        return job->done;
    }
    if (is_queued()) {
        std::erase(s.queue, job);
        s.end(*job, job->cancelled ? std::make_exception_ptr(Cancelled("the call was cancelled while it was queued"))
                                   : std::make_exception_ptr(DeadlineExceeded("the deadline passed in the queue")));
    } else if (job->shares) {  // what runs goes on for the others, without its rows
        s.end(*job, s.why_stopped(*job));
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
            s.end(*job, std::make_exception_ptr(Closed("the model was closed before the call ran")));
        }
        s.queue.clear();
    }
    s.wake.notify_all();
    if (s.owner.joinable()) {
        s.owner.join();
    }
    s.reader.reset();
    s.short_reader.reset();
}

int Engine::step_tokens() const {
    return state_->shape.budget.step_tokens;
}
int Engine::min_step_tokens() const {
    return state_->shape.budget.min_step_tokens;
}
int Engine::sequences() const {
    return state_->shape.budget.all_sequences();
}
int Engine::context_tokens() const {
    return state_->shape.context_tokens;
}
int Engine::parallel_rows() const {
    return state_->short_shape.value_or(state_->shape).budget.rows_per_step;
}
int Engine::parallel_rows_tokens() const {
    return state_->short_shape.value_or(state_->shape).context_tokens;
}

CacheInfo Engine::cache_info() const {
    check_process();
    const std::lock_guard lock(state_->mutex);
    return state_->cache_info;
}

}  // namespace decider
