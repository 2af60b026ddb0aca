// Calls that are read together: one merged request, and what each call gets of its answers.
#pragma once

#include "reader.h"

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace decider {

// The answer to one request.
struct Evaluation {
    std::vector<float> logits;            // every row's label logits, one row after another
    std::vector<double> log_normalizers;  // per row: log of the sum of exp over all of its next-token logits
    int64_t decoded_tokens = 0;
    int64_t padded_tokens = 0;
    int64_t reused_tokens = 0;  // from the context cache, or decoded for another call at the same time
    std::shared_ptr<const ContextCache::Entry> context;  // what Request::pin asks for; null where it cannot be kept
};

// One request on its way through an engine.
struct Job {
    explicit Job(Request r) : request(std::move(r)), readouts(request.row_ends.size()), missing(readouts.size()) {}
    bool late() const { return request.deadline && Clock::now() >= *request.deadline; }
    bool stopped() const { return done || cancelled || late(); }

    const Request request;
    std::atomic<bool> cancelled = false;
    std::atomic<bool> done = false;             // set under the engine's mutex
    std::atomic<int64_t> planned_tokens = 0;    // of its wave
    std::atomic<int64_t> processed_tokens = 0;  // of these
    Evaluation evaluation;                      // the owner thread's until the job is done, then its caller's
    std::exception_ptr failure;                 // likewise
    bool shares = false;                        // guarded by the engine's mutex: its end does not end what runs

    // The owner thread's:
    std::vector<Readout> readouts;
    size_t missing;  // rows that are not read yet
};

// How a wave reaches the engine that it runs in.
struct WaveHost {
    std::function<bool()> closing;                              // from any thread
    std::function<void(Job &)> finish;                          // a job has all of its answers
    std::function<bool(int64_t decoded, int64_t left)> yields;  // tokens since the last yield; tokens to come
    std::function<void()> serve_others;
};

// Runs on the engine's owner thread.
class Wave final : public Listener {
  public:
    Wave(std::vector<std::shared_ptr<Job>> jobs, WaveHost host);

    const Request & request() const { return request_; }
    std::span<const std::shared_ptr<Job>> jobs() const { return jobs_; }

    bool must_stop() override;
    bool wants(int row) override { return !rows_[row].job->stopped(); }
    void planned(int64_t tokens) override;
    void decoded(std::span<const int> rows, int tokens, int padding) override;
    void reused(std::span<const int> rows, int tokens) override;
    void read(int row, Readout readout) override;
    void pinned(const std::shared_ptr<const ContextCache::Entry> & context) override;
    bool yields(int64_t tokens_left) override;
    void serve_others() override;

  private:
    struct Owner {
        Job * job;
        size_t row;  // in the job
    };
    std::vector<Job *> owners(std::span<const int> rows) const;

    const std::vector<std::shared_ptr<Job>> jobs_;
    const WaveHost host_;
    Request request_;
    std::vector<Owner> rows_;
    int64_t decoded_ = 0;  // since the last yield
};

}  // namespace decider
