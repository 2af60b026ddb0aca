// One llama.cpp context: plans the rows of a request, decodes them, reads label logits. For one thread at a time.
#pragma once

#include "context_cache.h"
#include "shape.h"

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace decider {

using Clock = std::chrono::steady_clock;

// What a call asks: rows of tokens, and for each how many labels (the first n of Model::labels) it wants logits of.
struct Request {
    std::vector<Token> tokens;      // all rows, one after another
    std::vector<int64_t> row_ends;  // where each row ends in `tokens`
    std::vector<int32_t> label_counts;
    std::vector<int32_t> contexts;  // per row: its leading tokens that later calls may ask about again; 0: none
    bool pin = false;               // keep the context of the one row whatever its size, for whoever holds it
    std::optional<Clock::time_point> deadline;

    std::vector<Row> rows() const;  // views of `tokens`; row_ends must fit it
};

// What one row's last token says.
struct Readout {
    std::vector<float> logits;  // of the row's labels
    double normalizer = 0;      // log of the sum of exp over all next-token logits
};

// Thrown by Reader::run when it was asked to stop.
struct Stopped {};

// What a run tells whoever started it, and asks. Rows are those of the request, by number.
class Listener {
  public:
    virtual ~Listener() = default;
    // Asked before every decode step and, from any thread, during one: true ends the run.
    virtual bool must_stop() = 0;
    // Asked before every decode step: a row that is not wanted any more is left out from then on.
    virtual bool wants(int row) = 0;
    virtual void planned(int64_t tokens) = 0;
    virtual void decoded(std::span<const int> rows, int tokens, int padding) = 0;  // for these rows together
    virtual void reused(std::span<const int> rows, int tokens) = 0;                // from the context cache
    virtual void read(int row, Readout readout) = 0;
    virtual void pinned(const std::shared_ptr<const ContextCache::Entry> & context) = 0;  // Request::pin asks for it
    // Asked where the run can be suspended, with the tokens that are left of it. True: `serve_others` is called once,
    // which may start another run of the same reader.
    virtual bool yields(int64_t tokens_left) = 0;
    virtual void serve_others() = 0;
};

class Reader {
  public:
    // Throws ModelLoadError when the context cannot be made (too little memory, an architecture without one).
    Reader(std::shared_ptr<const Model> model, int threads, const Shape & shape, std::shared_ptr<ContextCache> cache);
    ~Reader();

    // Throws InvalidRequest or PayloadTooLarge for a request that cannot be run. May be called from another thread.
    void check(const Request & request) const;

    // Reads every row. Throws Stopped, or BackendError when the device fails; the next run starts clean either way.
    void run(const Request & request, Listener & listener);

    // Leading tokens of the rows that the context cache holds for this reader.
    int64_t known_tokens(const Request & request) const;

  private:
    class Batch;
    class ThreadPool;
    struct ContextDeleter {
        void operator()(llama_context * context) const { llama_free(context); }
    };

    struct Group;

    void read(const Request & request);
    void plan(Group & group) const;
    void run_plan(const Group & group);
    void save(const Save & step, const Group & group);
    void keep(const std::shared_ptr<const ContextCache::Entry> & context, const Request & request);
    bool decode(const Decode & step, const Group & group);
    void suspend(std::optional<int> sequence);
    bool can_copy(int tokens) const;
    std::vector<uint8_t> copy_state(int sequence) const;
    void restore(std::span<const uint8_t> state, int sequence);

    const std::shared_ptr<const Model> model_;
    const Shape shape_;
    std::unique_ptr<ThreadPool> threads_;
    std::unique_ptr<llama_context, ContextDeleter> context_;
    llama_memory_t memory_ = nullptr;
    std::unique_ptr<Batch> batch_;
    const std::shared_ptr<ContextCache> cache_;
    Listener * listener_ = nullptr;  // of the run that goes on; the abort callback asks it
};

}  // namespace decider
