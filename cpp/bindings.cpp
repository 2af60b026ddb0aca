// The Python module _native: translates arguments and errors, nothing else.
#include "backend.h"
#include "engine.h"
#include "errors.h"
#include "model.h"

#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstring>

namespace nb = nanobind;
using namespace nb::literals;

namespace decider {
namespace {

template <typename T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Output = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// How often a waiting call looks for Ctrl-C and for its caller's wish to cancel.
constexpr auto patience = std::chrono::milliseconds(20);

// In seconds; a longer one is none, and the clock could not count it.
constexpr double longest_timeout = 1e8;

template <typename T>
std::vector<T> to_vector(const Input<T> & array) {
    return {array.data(), array.data() + array.shape(0)};
}

template <typename T>
Output<T> to_array(const std::vector<T> & values) {
    auto * copy = new std::vector<T>(values);
    nb::capsule owner(copy, [](void * p) noexcept { delete static_cast<std::vector<T> *>(p); });
    return Output<T>(copy->data(), {copy->size()}, owner);
}

// llama.cpp hands on what a file holds; a text there that is no UTF-8 must not become another error.
nb::str readable(const std::string & text) {
    return nb::steal<nb::str>(PyUnicode_DecodeUTF8(text.data(), Py_ssize_t(text.size()), "replace"));
}

std::filesystem::path library_directory() {
    Dl_info info{};
    dladdr(reinterpret_cast<const void *>(&library_directory), &info);
    return std::filesystem::absolute(info.dli_fname).parent_path() / "lib";
}

void raise(const Error & error) {
    const nb::object type = nb::module_::import_("decider_native.errors").attr(error.python_class());
    nb::object value;
    if (const auto * large = dynamic_cast<const PayloadTooLarge *>(&error)) {
        value = type(readable(error.what()), "tokens"_a = large->tokens, "limit"_a = large->limit);
    } else {
        value = type(readable(error.what()));
    }
    PyErr_SetObject(type.ptr(), value.ptr());
}

std::shared_ptr<Model> load_model(std::string path, std::string device, std::optional<int> gpu_layers,
                                  std::optional<bool> exact) {
    const nb::gil_scoped_release release;
    load_backends(library_directory());
    return std::make_shared<Model>(ModelOptions{std::move(path), std::move(device), gpu_layers, exact});
}

// Frees the context and joins the owner thread without holding the GIL.
struct EngineDeleter {
    void operator()(Engine * engine) const {
        const nb::gil_scoped_release release;
        delete engine;
    }
};

std::shared_ptr<Engine> make_engine(std::shared_ptr<Model> model, int threads, int context_tokens,
                                    std::optional<int> parallel_rows, size_t context_cache_bytes) {
    const nb::gil_scoped_release release;
    return {new Engine(std::move(model), EngineOptions{threads, context_tokens, parallel_rows, context_cache_bytes}),
            EngineDeleter{}};
}

Evaluation evaluate(Engine & engine, const Input<int32_t> & tokens, const Input<int64_t> & row_ends,
                    const Input<int32_t> & label_counts, const Input<int32_t> & contexts, bool pin,
                    std::optional<double> timeout, const std::optional<nb::typed<nb::callable, bool()>> & cancelled,
                    const std::optional<nb::typed<nb::callable, void(int64_t, int64_t)>> & progress) {
    Request request{to_vector(tokens), to_vector(row_ends), to_vector(label_counts), to_vector(contexts), pin,
                    std::nullopt};
    if (timeout && *timeout < longest_timeout) {
        request.deadline =
            Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*timeout));
    }
    std::shared_ptr<Job> job;
    const auto wait = [&](Clock::duration how_long) {
        const nb::gil_scoped_release release;
        if (!job) {
            job = engine.submit(std::move(request));
        }
        return engine.wait(job, how_long);
    };
    const auto report = [&] {  // false: it raised
        const nb::object done = nb::int_(job->processed_tokens.load());
        const nb::object total = nb::int_(job->planned_tokens.load());
        return nb::steal(PyObject_CallFunctionObjArgs(progress->ptr(), done.ptr(), total.ptr(), nullptr)).is_valid();
    };
    while (!wait(patience)) {
        bool stop = false;
        bool failed = PyErr_CheckSignals() != 0 || (progress && job->planned_tokens > 0 && !report());
        if (!failed && cancelled) {
            const nb::object answer = nb::steal(PyObject_CallNoArgs(cancelled->ptr()));
            const int truth = answer.is_valid() ? PyObject_IsTrue(answer.ptr()) : -1;
            failed = truth < 0;
            stop = truth > 0;
        }
        if (failed || stop) {
            engine.cancel(job);
        }
        if (failed) {  // KeyboardInterrupt, or the caller's own error: it leaves when the model has stopped
            nb::python_error error;
            while (!wait(patience)) {
            }
            throw error;
        }
    }
    Evaluation evaluation = engine.take(job);
    if (progress && !report()) {
        throw nb::python_error();
    }
    return evaluation;
}

// A plan as tuples: ("decode", [(sequence, row, begin, end, padding, read), ...]), ("fork", source, target),
// ("drop", sequence), ("save", sequence, row, tokens).
nb::list plan_steps(const Input<int32_t> & tokens, const Input<int64_t> & row_ends, const Input<int32_t> & contexts,
                    int restored, int step_tokens, int min_step_tokens, int sequences, int rows_per_step, int step_cost,
                    int tile) {
    const Request request{to_vector(tokens), to_vector(row_ends), {}, {}, false, std::nullopt};
    const Plan plan =
        make_plan(request.rows(), {step_tokens, min_step_tokens, sequences, rows_per_step, step_cost, tile},
                  {to_vector(contexts), restored});
    nb::list steps;
    for (const Step & step : plan.steps) {
        if (const auto * decode = std::get_if<Decode>(&step)) {
            nb::list segments;
            for (const Segment & s : decode->segments) {
                segments.append(nb::make_tuple(s.sequence, s.row, s.begin, s.end, s.padding, s.read));
            }
            steps.append(nb::make_tuple("decode", segments));
        } else if (const auto * fork = std::get_if<Fork>(&step)) {
            steps.append(nb::make_tuple("fork", fork->source, fork->target));
        } else if (const auto * drop = std::get_if<Drop>(&step)) {
            steps.append(nb::make_tuple("drop", drop->sequence));
        } else if (const auto * save = std::get_if<Save>(&step)) {
            steps.append(nb::make_tuple("save", save->sequence, save->row, save->tokens));
        }
    }
    return steps;
}

}  // namespace
}  // namespace decider

NB_MODULE(_native, m) {
    using namespace decider;
    nb::set_leak_warnings(false);  // a Decider that lives until exit is no leak
    m.doc() = "llama.cpp behind decider_native.engine; import that module instead.";

    nb::register_exception_translator([](const std::exception_ptr & pointer, void *) {
        try {
            std::rethrow_exception(pointer);
        } catch (const Error & error) {
            raise(error);
        }
    });

    nb::class_<DeviceInfo>(m, "DeviceInfo", "A device that a loaded backend module offers.")
        .def_ro("name", &DeviceInfo::name)
        .def_ro("description", &DeviceInfo::description)
        .def_ro("kind", &DeviceInfo::kind)
        .def_ro("backend", &DeviceInfo::backend)
        .def_ro("memory_free", &DeviceInfo::memory_free)
        .def_ro("memory_total", &DeviceInfo::memory_total);

    nb::class_<ModuleInfo>(m, "ModuleInfo", "A backend module of the package, in use or not.")
        .def_ro("file", &ModuleInfo::file)
        .def_ro("backend", &ModuleInfo::backend)
        .def_prop_ro("reason", [](const ModuleInfo & module) { return readable(module.reason); });

    nb::class_<ContextCache::Entry>(m, "KeptContext",
                                    "A context's state. Calls start from it for as long as it is held.")
        .def_prop_ro("bytes", [](const ContextCache::Entry & entry) { return entry.state.size(); });

    nb::class_<Evaluation>(m, "Evaluation", "What one call read.")
        .def_prop_ro(
            "logits", [](const Evaluation & e) { return to_array(e.logits); }, nb::rv_policy::move,
            "Label logits of all rows, float32.")
        .def_prop_ro(
            "log_normalizers", [](const Evaluation & e) { return to_array(e.log_normalizers); }, nb::rv_policy::move,
            "Per row, log of the sum of exp over the whole vocabulary, float64.")
        .def_ro("decoded_tokens", &Evaluation::decoded_tokens)
        .def_ro("padded_tokens", &Evaluation::padded_tokens)
        .def_ro("reused_tokens", &Evaluation::reused_tokens)
        .def_prop_ro(
            "context", [](const Evaluation & e) { return std::const_pointer_cast<ContextCache::Entry>(e.context); },
            "What pin asked for; None where the model's state cannot be kept.");

    nb::class_<Model>(m, "Model", "One GGUF file on one device. Immutable and thread-safe.")
        .def(nb::new_(&load_model), "path"_a, "device"_a, "gpu_layers"_a.none(), "exact"_a.none())
        .def(
            "tokenize",
            [](const Model & model, std::string_view text, bool parse_special) {
                std::vector<Token> tokens;
                {
                    const nb::gil_scoped_release release;
                    tokens = model.tokenize(text, parse_special);
                }
                return to_array(tokens);
            },
            "text"_a, "parse_special"_a)
        .def(
            "detokenize",
            [](const Model & model, const Input<int32_t> & tokens) {
                const std::string text = model.detokenize({tokens.data(), tokens.shape(0)});
                return nb::bytes(text.data(), text.size());
            },
            "tokens"_a)
        .def_prop_ro(
            "labels", [](const Model & model) { return to_array(model.labels()); }, nb::rv_policy::move)
        .def_prop_ro("metadata",
                     [](const Model & model) {
                         nb::typed<nb::dict, nb::str, nb::str> metadata;
                         for (const auto & [key, value] : model.metadata()) {
                             metadata[readable(key)] = readable(value);
                         }
                         return metadata;
                     })
        .def_prop_ro("chat_template", [](const Model & model) { return readable(model.chat_template()); })
        .def_prop_ro("description", [](const Model & model) { return readable(model.description()); })
        .def_prop_ro("leading_token", &Model::leading_token)
        .def_prop_ro("vocabulary_size", &Model::vocabulary_size)
        .def_prop_ro("longest_token_bytes", &Model::longest_token_bytes)
        .def_prop_ro("trained_context", &Model::trained_context)
        .def_prop_ro("parameters", &Model::parameters)
        .def_prop_ro("size_bytes", &Model::size_bytes)
        .def_prop_ro("device", &Model::device)
        .def_prop_ro("device_description", &Model::device_description)
        .def_prop_ro("on_gpu", &Model::on_gpu)
        .def_prop_ro("exact", &Model::exact);

    nb::class_<Engine>(m, "Engine", "One context and the thread that owns it. Thread-safe.")
        .def(nb::new_(&make_engine), "model"_a, "threads"_a, "context_tokens"_a, "parallel_rows"_a.none(),
             "context_cache_bytes"_a)
        .def("evaluate", &evaluate, "tokens"_a, "row_ends"_a, "label_counts"_a, "contexts"_a, "pin"_a = false,
             "timeout"_a.none() = nb::none(), "cancelled"_a.none() = nb::none(), "progress"_a.none() = nb::none())
        .def("close", &Engine::close, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("context_tokens", &Engine::context_tokens)
        .def_prop_ro(
            "context_cache",
            [](const Engine & engine) {
                const CacheInfo info = engine.cache_info();
                return std::make_pair(info.entries, info.bytes);
            },
            "Contexts kept, and their bytes.")
        .def_prop_ro("step_tokens", &Engine::step_tokens)
        .def_prop_ro("min_step_tokens", &Engine::min_step_tokens)
        .def_prop_ro("sequences", &Engine::sequences)
        .def_prop_ro("parallel_rows", &Engine::parallel_rows, "Most rows that share a decode step.")
        .def_prop_ro("parallel_rows_tokens", &Engine::parallel_rows_tokens, "How long these may be.");

    m.def("plan_steps", &plan_steps, "tokens"_a, "row_ends"_a, "contexts"_a, nb::kw_only(), "restored"_a,
          "step_tokens"_a, "min_step_tokens"_a, "sequences"_a, "rows_per_step"_a, "step_cost"_a, "tile"_a,
          nb::sig("def plan_steps(tokens: NDArray[numpy.int32], row_ends: NDArray[numpy.int64], contexts: "
                  "NDArray[numpy.int32], *, restored: int, step_tokens: int, min_step_tokens: int, sequences: int, "
                  "rows_per_step: int, step_cost: int, tile: int) -> list[tuple[object, ...]]"),
          "How a call's rows would be decoded; for tests of the planner.");
    m.def("devices", [] {
        load_backends(library_directory());
        return devices();
    });
    m.def("modules", [] {
        load_backends(library_directory());
        return modules();
    });
    m.def("cpu_features", [] {
        load_backends(library_directory());
        return cpu_features();
    });
    m.def(
        "drain_log",
        [] {
            std::vector<nb::tuple> lines;
            for (const LogLine & line : drain_log()) {
                lines.push_back(nb::make_tuple(line.level, readable(line.text)));
            }
            return lines;
        },
        nb::sig("def drain_log() -> list[tuple[int, str]]"));
    m.def("set_log_level", &set_log_level, "level"_a);
    m.def(
        "quantize",
        [](const std::string & source, const std::string & target, const std::string & type) {
            load_backends(library_directory());
            quantize(source, target, type);
        },
        "source"_a, "target"_a, "type"_a, nb::call_guard<nb::gil_scoped_release>());
}
