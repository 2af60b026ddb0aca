// One llama.cpp context and the thread that owns it: runs plans, returns label logits.
#pragma once

#include "model.h"
#include "plan.h"

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

namespace decider {

using Clock = std::chrono::steady_clock;

struct EngineOptions {
    int threads = 1;                 // CPU threads of one decode step
    int context_tokens = 16384;      // longest row, in tokens
    int parallel_rows = 8;           // rows that share one decode step when the model is not exact
    size_t context_cache_bytes = 0;  // bound of the states kept between calls
};

// What a call asks: rows of tokens, and for each how many labels (the first n of Model::labels) it wants logits of.
struct Request {
    std::vector<Token> tokens;      // all rows, one after another
    std::vector<int64_t> row_ends;  // where each row ends in `tokens`
    std::vector<int32_t> label_counts;
    std::vector<int32_t> contexts;  // per row: its leading tokens that later calls may ask about again; 0: none
    std::optional<Clock::time_point> deadline;
};

struct Evaluation {
    std::vector<float> logits;            // every row's label logits, one row after another
    std::vector<double> log_normalizers;  // per row: log of the sum of exp over all of its next-token logits
    int64_t decoded_tokens = 0;
    int64_t padded_tokens = 0;
    int64_t reused_tokens = 0;  // taken from the context cache
};

struct CacheInfo {
    size_t entries;
    size_t bytes;
};

struct Job;  // one request on its way through an engine

// Thread-safe. Calls queue to the owner thread in the order they come.
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
    CacheInfo cache_info() const;

  private:
    struct State;
    void check_process() const;
    std::unique_ptr<State> state_;
};

}  // namespace decider
