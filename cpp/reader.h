// One llama.cpp context: plans the rows of a request, decodes them, reads label logits. For one thread at a time.
#pragma once

#include "context_cache.h"
#include "model.h"
#include "plan.h"

#include <chrono>
#include <functional>
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

// Thrown by Reader::run when it was asked to stop.
struct Stopped {};

class Reader {
  public:
    // `stop` is asked before every decode step and by llama.cpp during one; true ends the run. Throws ModelLoadError
    // when the context cannot be made (too little memory, an architecture without one).
    Reader(std::shared_ptr<const Model> model, const EngineOptions & options, std::function<bool()> stop);
    ~Reader();

    // Throws InvalidRequest or PayloadTooLarge for a request that cannot be run. May be called from another thread.
    void check(const Request & request) const;

    // Throws Stopped, or BackendError when the device fails; the next run starts clean either way.
    Evaluation run(const Request & request);

    CacheInfo cache_info() const { return {cache_.size(), cache_.bytes()}; }
    const Budget & budget() const { return budget_; }
    int context_tokens() const { return context_tokens_; }

  private:
    class Batch;
    class ThreadPool;
    struct Readout;
    struct ContextDeleter {
        void operator()(llama_context * context) const { llama_free(context); }
    };

    Evaluation read(const Request & request);
    void read_group(const Request & request, const std::vector<Row> & rows, const std::vector<int> & members,
                    const ContextCache::Entry * entry, std::vector<Readout> & readouts, Evaluation & evaluation);
    void decode(const Decode & step, const std::vector<Row> & rows, std::vector<Readout> & readouts);
    bool worth_caching(int context) const;
    bool restore(const ContextCache::Entry & entry);
    void save(const Save & step, Row row);

    const std::shared_ptr<const Model> model_;
    const std::function<bool()> stop_;
    Budget budget_{};
    int context_tokens_ = 0;  // longest row
    int cells_ = 0;           // what the context holds
    std::unique_ptr<ThreadPool> threads_;
    std::unique_ptr<llama_context, ContextDeleter> context_;
    llama_memory_t memory_ = nullptr;
    std::unique_ptr<Batch> batch_;
    ContextCache cache_;
};

}  // namespace decider
