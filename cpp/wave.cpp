#include "wave.h"

#include <algorithm>

namespace decider {

Wave::Wave(std::vector<std::shared_ptr<Job>> jobs, WaveHost host) : jobs_(std::move(jobs)), host_(std::move(host)) {
    for (const auto & job : jobs_) {
        const Request & r = job->request;
        const auto offset = int64_t(request_.tokens.size());
        request_.tokens.insert(request_.tokens.end(), r.tokens.begin(), r.tokens.end());
        for (size_t row = 0; row < r.row_ends.size(); ++row) {
            request_.row_ends.push_back(offset + r.row_ends[row]);
            rows_.push_back({job.get(), row});
        }
        request_.label_counts.insert(request_.label_counts.end(), r.label_counts.begin(), r.label_counts.end());
        request_.contexts.insert(request_.contexts.end(), r.contexts.begin(), r.contexts.end());
        request_.pin = r.pin;
    }
}

bool Wave::must_stop() {
    const auto ended = [](const auto & job) { return job->done.load(); };
    const auto stopped = [](const auto & job) { return job->stopped(); };
    return host_.closing() || (std::ranges::all_of(jobs_, stopped) && !std::ranges::all_of(jobs_, ended));
}

void Wave::planned(int64_t tokens) {
    for (const auto & job : jobs_) {
        job->planned_tokens = tokens;
    }
}

std::vector<Job *> Wave::owners(std::span<const int> rows) const {
    std::vector<Job *> result;
    for (const int row : rows) {
        if (std::ranges::find(result, rows_[row].job) == result.end()) {
            result.push_back(rows_[row].job);
        }
    }
    return result;
}

void Wave::decoded(std::span<const int> rows, int tokens, int padding) {
    decoded_ += tokens;
    bool first = true;  // one call pays for what several share
    for (Job * job : owners(rows)) {
        (first ? job->evaluation.decoded_tokens : job->evaluation.reused_tokens) += tokens;
        job->evaluation.padded_tokens += first ? padding : 0;
        first = false;
    }
    for (const auto & job : jobs_) {
        job->processed_tokens += tokens;
    }
}

void Wave::reused(std::span<const int> rows, int tokens) {
    for (Job * job : owners(rows)) {
        job->evaluation.reused_tokens += tokens;
    }
}

void Wave::read(int row, Readout readout) {
    Job & job = *rows_[row].job;
    job.readouts[rows_[row].row] = std::move(readout);
    if (--job.missing > 0) {
        return;
    }
    for (const Readout & each : job.readouts) {
        job.evaluation.logits.insert(job.evaluation.logits.end(), each.logits.begin(), each.logits.end());
        job.evaluation.log_normalizers.push_back(each.normalizer);
    }
    host_.finish(job);
}

void Wave::pinned(const std::shared_ptr<const ContextCache::Entry> & context) {
    Job & job = *jobs_.front();                                    // a call that pins is alone in its wave
    if (int(context->tokens.size()) == job.request.contexts[0]) {  // not one that it only starts from
        job.evaluation.context = context;
    }
}

bool Wave::yields(int64_t tokens_left) {
    return host_.yields(decoded_, tokens_left);
}

void Wave::serve_others() {
    host_.serve_others();
    decoded_ = 0;
}

}  // namespace decider
