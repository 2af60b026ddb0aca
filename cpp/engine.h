// Readers and the thread that owns them: calls from any thread queue to it; deadline, cancel, close.
#pragma once

#include "wave.h"

#include <memory>

namespace decider {

struct EngineOptions {
    int threads = 1;                   // CPU threads of one decode step
    int context_tokens = 16384;        // longest row, in tokens
    std::optional<int> parallel_rows;  // rows that share a decode step; none: what the model and its memory suggest
    size_t context_cache_bytes = 0;    // bound of the states kept between calls
};

struct CacheInfo {
    size_t entries;
    size_t bytes;
};

// Thread-safe. Calls queue to the owner thread in the order they come. Those that wait at the same time are read in
// waves, so that what they share is decoded once; a long call makes way for short ones between two decode steps.
class Engine {
  public:
    // Throws ModelLoadError when the context cannot be made (too little memory, an architecture without one).
    Engine(std::shared_ptr<const Model> model, const EngineOptions & options);
    ~Engine();
    Engine(const Engine &) = delete;
    Engine & operator=(const Engine &) = delete;

    // Queue a request. Throws InvalidRequest or PayloadTooLarge for one that cannot be run, Closed after close().
    std::shared_ptr<Job> submit(Request request);

    // Wait up to `patience` for the job: true when it is done. A deadline that passes in the queue ends the job.
    bool wait(const std::shared_ptr<Job> & job, Clock::duration patience);

    // Ask the job to stop; it ends at the next check of a running decode step, with Cancelled.
    void cancel(const std::shared_ptr<Job> & job);

    // The result of a job that is done. Throws what ended it: DeadlineExceeded, Cancelled, Closed or BackendError.
    Evaluation take(const std::shared_ptr<Job> & job);

    // End the running job and all queued ones with Closed, stop the owner thread, free the context. Idempotent.
    void close();

    int step_tokens() const;
    int min_step_tokens() const;
    int sequences() const;
    int context_tokens() const;
    int parallel_rows() const;         // most rows that share a decode step
    int parallel_rows_tokens() const;  // how long they may be
    CacheInfo cache_info() const;

  private:
    struct State;
    void check_process() const;
    std::unique_ptr<State> state_;
};

}  // namespace decider
