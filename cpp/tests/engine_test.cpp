// The engine on a real file: engine_test BACKEND_DIRECTORY MODEL.gguf, where the model answers with any weights.
#include "engine.h"

#include "backend.h"
#include "check.h"
#include "errors.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <thread>

using namespace decider;
using namespace std::chrono_literals;

namespace {

using Tokens = std::vector<Token>;

constexpr int context_tokens = 2048;
constexpr int labels = 64;

template <typename E, typename F>
bool throws(F && f) {
    try {
        f();
    } catch (const E &) {
        return true;
    } catch (const std::exception & error) {
        std::fprintf(stderr, "another error: %s\n", error.what());
    }
    return false;
}

Tokens random_tokens(int count, unsigned seed) {
    std::mt19937 random(seed);
    Tokens tokens(count);
    for (Token & token : tokens) {
        token = Token(random() % 200);
    }
    return tokens;
}

Tokens joined(Tokens head, const Tokens & tail) {
    head.insert(head.end(), tail.begin(), tail.end());
    return head;
}

Request request(const std::vector<Tokens> & rows) {
    Request r;
    for (const Tokens & row : rows) {
        r.tokens = joined(r.tokens, row);
        r.row_ends.push_back(int64_t(r.tokens.size()));
        r.label_counts.push_back(labels);
        r.contexts.push_back(0);
    }
    return r;
}

Request long_request(std::optional<Clock::duration> timeout = std::nullopt) {
    Request r = request({random_tokens(context_tokens, 1)});
    if (timeout) {
        r.deadline = Clock::now() + *timeout;
    }
    return r;
}

Evaluation finish(Engine & engine, const std::shared_ptr<Job> & job) {
    while (!engine.wait(job, 10ms)) {
    }
    return engine.take(job);
}

Evaluation evaluate(Engine & engine, const std::vector<Tokens> & rows) {
    return finish(engine, engine.submit(request(rows)));
}

constexpr int context_length = 150;  // long enough for the context cache

std::vector<Tokens> related_rows() {
    const Tokens context = random_tokens(context_length, 2);
    const Tokens question = joined(context, random_tokens(20, 3));
    return {joined(question, random_tokens(3, 4)),
            joined(context, random_tokens(30, 5)),
            question,
            joined(question, random_tokens(9, 6)),
            question,
            random_tokens(1, 7)};
}

// The rows of a call say what each says alone.
void check_answers(Engine & engine) {
    const std::vector<Tokens> rows = related_rows();
    const Evaluation together = evaluate(engine, rows);
    CHECK(together.logits.size() == rows.size() * labels);
    for (size_t i = 0; i < rows.size(); ++i) {
        const Evaluation alone = evaluate(engine, {rows[i]});
        CHECK(std::ranges::equal(alone.logits, std::span(together.logits).subspan(i * labels, labels)));
        CHECK(alone.log_normalizers[0] == together.log_normalizers[i]);
    }
    CHECK(together.decoded_tokens < context_length + 30 + 20 + 3 + 9 + 1 + 3);

    Request cached = request({rows[0], rows[1]});
    cached.contexts = {context_length, context_length};
    for (const bool known : {false, true}) {
        const Evaluation again = finish(engine, engine.submit(cached));
        CHECK(!known || again.reused_tokens == context_length);
        CHECK(std::ranges::equal(again.logits, std::span(together.logits).first(2 * labels)));
    }
    CHECK(engine.cache_info().entries == 1);
}

// What a reader says of the rows that are wanted.
struct Collector final : Listener {
    explicit Collector(std::set<int> rows) : unwanted(std::move(rows)) {}
    bool must_stop() override { return false; }
    bool wants(int row) override { return !unwanted.contains(row); }
    void planned(int64_t) override {}
    void decoded(std::span<const int>, int, int) override {}
    void reused(std::span<const int>, int) override {}
    void read(int row, Readout readout) override { readouts[row] = std::move(readout); }
    void pinned(const std::shared_ptr<const ContextCache::Entry> &) override {}
    bool yields(int64_t) override { return false; }
    void serve_others() override {}

    const std::set<int> unwanted;
    std::map<int, Readout> readouts;
};

// Rows that are given up change nothing for those that share their steps: rows about one state, about two of nearly one
// length, which are cut and share a step, and about two that have a step each.
void check_given_up(const std::shared_ptr<const Model> & model) {
    const auto shape = short_shape_for(*model, shape_for(*model, context_tokens, std::nullopt));
    CHECK(shape && shape->budget.rows_per_step == 4);
    Reader reader(model, 1, *shape, std::make_shared<ContextCache>(0));
    for (const int other_state : {0, 21, 45}) {
        std::vector<Tokens> rows;
        for (int i = 0; i < 4; ++i) {
            const Tokens state = i < 2 || other_state == 0 ? random_tokens(20, 9) : random_tokens(other_state, 8);
            rows.push_back(joined(state, random_tokens(10 + i, unsigned(10 + i))));
        }
        Collector all({});
        reader.run(request(rows), all);
        for (const std::set<int> & unwanted :
             {std::set{0}, std::set{1}, std::set{2}, std::set{3}, std::set{0, 1}, std::set{2, 3}}) {
            Collector some(unwanted);
            reader.run(request(rows), some);
            CHECK(some.readouts.size() == 4 - unwanted.size());
            for (const auto & [row, readout] : some.readouts) {
                CHECK(!unwanted.contains(row) && readout.logits == all.readouts[row].logits);
                CHECK(readout.normalizer == all.readouts[row].normalizer);
            }
        }
    }
}

void check_limits(Engine & engine) {
    const auto submit = [&](Request r) { engine.submit(std::move(r)); };
    const auto with = [](auto change) {
        Request r = request({{1, 2, 3}});
        change(r);
        return r;
    };
    CHECK(throws<InvalidRequest>([&] { submit(request({{}})); }));
    CHECK(throws<InvalidRequest>([&] { submit(request({{-1}})); }));
    CHECK(throws<InvalidRequest>([&] { submit(request({{1 << 30}})); }));
    CHECK(throws<PayloadTooLarge>([&] { submit(request({random_tokens(context_tokens + 1, 1)})); }));
    CHECK(throws<InvalidRequest>([&] { submit(with([](Request & r) { r.label_counts[0] = 0; })); }));
    CHECK(throws<InvalidRequest>([&] { submit(with([](Request & r) { r.label_counts[0] = 256; })); }));
    CHECK(throws<InvalidRequest>([&] { submit(with([](Request & r) { r.label_counts.push_back(1); })); }));
    CHECK(throws<InvalidRequest>([&] { submit(with([](Request & r) { r.row_ends[0] = 2; })); }));
    CHECK(throws<InvalidRequest>(
        [&] { submit(with([](Request & r) { r.row_ends = {5, 3}, r.label_counts = {1, 1}, r.contexts = {0, 0}; })); }));
    CHECK(throws<InvalidRequest>([&] { submit(with([](Request & r) { r.contexts[0] = 3; })); }));
    CHECK(throws<InvalidRequest>([&] { submit(with([](Request & r) { r.contexts[0] = -1; })); }));
    CHECK(throws<InvalidRequest>([&] { submit(with([](Request & r) { r.contexts.clear(); })); }));
    CHECK(evaluate(engine, {}).logits.empty());
}

void check_stops(Engine & engine) {
    CHECK(throws<DeadlineExceeded>([&] { finish(engine, engine.submit(long_request(0ms))); }));
    CHECK(throws<DeadlineExceeded>([&] { finish(engine, engine.submit(long_request(30ms))); }));

    const auto running = engine.submit(long_request());
    const auto late = engine.submit(long_request(5ms));
    const auto unwanted = engine.submit(long_request());
    CHECK(!engine.wait(running, 1ms));
    engine.cancel(unwanted);
    CHECK(throws<DeadlineExceeded>([&] { finish(engine, late); }));
    CHECK(throws<Cancelled>([&] { finish(engine, unwanted); }));
    engine.cancel(running);
    CHECK(throws<Cancelled>([&] { finish(engine, running); }));
}

void check_threads(Engine & engine) {
    const std::vector<Tokens> rows = related_rows();
    const Evaluation expected = evaluate(engine, rows);
    std::vector<int> wrong(4);
    std::vector<std::thread> callers;
    for (size_t i = 0; i < wrong.size(); ++i) {
        callers.emplace_back([&, i] {
            for (int call = 0; call < 5; ++call) {
                if (call == 2) {
                    engine.cancel(engine.submit(long_request()));  // nobody waits for it
                }
                wrong[i] += evaluate(engine, rows).logits != expected.logits;
            }
        });
    }
    for (std::thread & caller : callers) {
        caller.join();
    }
    CHECK(std::ranges::count(wrong, 0) == 4);
}

void check_close(Engine & engine) {
    const auto running = engine.submit(long_request());
    const auto queued = engine.submit(long_request());
    std::thread caller([&] { CHECK(throws<Closed>([&] { finish(engine, running); })); });
    std::this_thread::sleep_for(20ms);
    std::thread closer([&] { engine.close(); });
    engine.close();
    closer.join();
    caller.join();
    CHECK(throws<Closed>([&] { finish(engine, queued); }));
    CHECK(throws<Closed>([&] { engine.submit(request({{1}})); }));
}

// A forked child has no owner thread: it is told so, and may drop the engine.
void check_fork(std::unique_ptr<Engine> engine) {
    const pid_t child = fork();
    if (child == 0) {
        const bool refused = throws<BackendError>([&] { engine->submit(request({{1}})); });
        engine->close();
        engine.reset();
        _exit(refused ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
    check_answers(*engine);
}

void check_text(const Model & model) {
    CHECK(model.labels().size() == 255);
    for (const std::string text : {"", "A", "<|im_end|> <think>", "caf\xC3\xA9", "\xFF\xFE broken", "a\0b"}) {
        const Tokens plain = model.tokenize(text, false);
        CHECK(text.find('\xFF') != std::string::npos || model.detokenize(plain) == text);
        CHECK(model.tokenize(text, true).size() <= plain.size());
    }
    CHECK(!model.metadata().empty() && !model.chat_template().empty() && !model.description().empty());
}

}  // namespace

int main(int count, char ** arguments) {
    if (count != 3) {
        std::fprintf(stderr, "usage: engine_test BACKEND_DIRECTORY MODEL.gguf\n");
        return 2;
    }
    const std::string file = arguments[2];
    CHECK(throws<BackendError>([] { load_backends("/nonexistent"); }));
    load_backends(arguments[1]);
    CHECK(!devices().empty());
    CHECK(throws<BackendError>([&] { Model({file, "nosuch", {}, {}}); }));
    CHECK(throws<ModelLoadError>([] { Model({"/nonexistent.gguf", "cpu", {}, {}}); }));
    CHECK(throws<ModelLoadError>([&] { Model({arguments[0], "cpu", {}, {}}); }));
    CHECK(throws<InvalidRequest>([&] { quantize(file, "/dev/null", "Q9"); }));

    for (const bool exact : {true, false}) {
        const auto model = std::make_shared<const Model>(ModelOptions{file, "CPU", {}, exact});
        const EngineOptions options{exact ? 2 : 1, context_tokens, std::nullopt, 1 << 26};
        check_text(*model);
        Engine engine(model, options);
        CHECK(engine.sequences() > (exact ? 1 : 8) && engine.step_tokens() >= 2 * engine.min_step_tokens());
        if (exact) {
            check_answers(engine);
        }
        check_limits(engine);
        check_stops(engine);
        if (exact) {
            check_answers(engine);
            check_threads(engine);
            check_given_up(model);
            check_fork(std::make_unique<Engine>(model, options));
        }
        CHECK(evaluate(engine, {random_tokens(context_tokens, 8)}).logits.size() == labels);
        check_close(engine);

        const auto outlives = [&] {  // an engine may go while its jobs run, and a job may outlive it
            Engine other(model, options);
            other.submit(long_request());
            return other.submit(long_request());
        }();
        CHECK(outlives != nullptr);
    }
    std::printf(failed_checks ? "%d checks failed\n" : "engine: all checks passed\n", failed_checks);
    return failed_checks ? 1 : 0;
}
