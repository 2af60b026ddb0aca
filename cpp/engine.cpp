#include "engine.h"

#include "errors.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace decider {

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
    State(std::shared_ptr<const Model> model, const EngineOptions & options)
        : reader(std::make_unique<Reader>(std::move(model), options, [this] { return must_stop(); })),
          budget(reader->budget()),
          context_tokens(reader->context_tokens()),
          owner([this] { work(); }) {}

    void work();
    void finish(Job & job, std::exception_ptr failure);
    bool must_stop() const;
    std::exception_ptr why_stopped() const;

    const pid_t process = getpid();
    std::mutex close_mutex;
    std::mutex mutex;
    std::condition_variable wake;  // the owner thread: something is queued, or closing
    std::condition_variable done;  // callers: a job ended
    std::deque<std::shared_ptr<Job>> queue;
    CacheInfo cache_info{};
    std::atomic<Job *> running = nullptr;
    std::atomic<bool> closing = false;

    std::unique_ptr<Reader> reader;  // the owner thread's; null once closed
    const Budget budget;
    const int context_tokens;
    std::thread owner;  // last: it starts when everything else stands
};

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
            evaluation = reader->run(job->request);
        } catch (const Stopped &) {
            failure = why_stopped();
        } catch (const Error &) {
            failure = std::current_exception();
        } catch (const std::exception & error) {
            failure = std::make_exception_ptr(BackendError(std::string("llama.cpp failed: ") + error.what()));
        }
        lock.lock();
        running = nullptr;
        cache_info = reader->cache_info();
        job->evaluation = std::move(evaluation);
        finish(*job, failure);
    }
}

void Engine::State::finish(Job & job, std::exception_ptr failure) {
    job.failure = failure;
    job.done = true;
    done.notify_all();
}

bool Engine::State::must_stop() const {
    const Job * job = running;
    return job && (closing || job->cancelled || job->late());
}

std::exception_ptr Engine::State::why_stopped() const {
    const Job & job = *running.load();
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
    s.reader.reset();
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
