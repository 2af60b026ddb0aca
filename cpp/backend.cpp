#include "backend.h"

#include "errors.h"

#include <dlfcn.h>
#include <ggml.h>
#include <llama.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <deque>
#include <mutex>
#include <stdexcept>

namespace decider {
namespace {

constexpr size_t kept_log_lines = 1000;

std::filesystem::path module_directory;  // set before any module is loaded, never again

std::mutex log_mutex;
std::deque<LogLine> log_lines;
std::atomic<int> log_level = GGML_LOG_LEVEL_WARN;
thread_local LogCapture * capture = nullptr;
thread_local bool assertions_throw = false;

void keep(LogLine line) {
    if (line.level < log_level) {
        return;
    }
    const std::lock_guard lock(log_mutex);
    log_lines.push_back(std::move(line));
    if (log_lines.size() > kept_log_lines) {
        log_lines.pop_front();
    }
}

void on_log(ggml_log_level level, const char * text, void *) {
    static thread_local int last_level = GGML_LOG_LEVEL_INFO;
    if (level != GGML_LOG_LEVEL_CONT) {
        last_level = level;
    }
    std::string line = text;
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) {
        line.pop_back();
    }
    if (line.empty()) {
        return;
    }
    if (capture && last_level >= GGML_LOG_LEVEL_WARN) {
        capture->add({last_level, std::move(line)});
    } else {
        keep({last_level, std::move(line)});
    }
}

void on_failed_assertion(const char * message) {
    if (assertions_throw) {
        throw std::runtime_error(message);
    }
    std::fprintf(stderr, "%s\n", message);  // the process ends
}

std::string lower(std::string text) {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
}

const char * kind_name(enum ggml_backend_dev_type type) {
    switch (type) {
        case GGML_BACKEND_DEVICE_TYPE_CPU: return "cpu";
        case GGML_BACKEND_DEVICE_TYPE_GPU: return "gpu";
        case GGML_BACKEND_DEVICE_TYPE_IGPU: return "igpu";
        default: return "accel";
    }
}

ggml_backend_reg_t cpu_registry() {
    return ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
}

bool is_registered(ggml_backend_reg_t reg) {
    for (size_t i = 0; i < ggml_backend_reg_count(); ++i) {
        if (ggml_backend_reg_get(i) == reg) {
            return true;
        }
    }
    return false;
}

// A release build of ggml passes over modules that it does not use in silence: this finds out why.
ModuleInfo describe(const std::filesystem::path & path) {
    ModuleInfo info{path.filename().string(), "", ""};
    void * handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    const bool resident = handle;
    if (!resident) {
        handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    if (!handle) {
        info.reason = dlerror();
        return info;
    }
    const auto score = reinterpret_cast<int (*)()>(dlsym(handle, "ggml_backend_score"));
    const auto init = reinterpret_cast<ggml_backend_reg_t (*)()>(dlsym(handle, "ggml_backend_init"));
    if (score && score() == 0) {
        info.reason = "this CPU lacks instructions that it was compiled for";
    } else if (const ggml_backend_reg_t reg = resident && init ? init() : nullptr; reg && is_registered(reg)) {
        if (ggml_backend_reg_dev_count(reg) > 0) {
            info.backend = ggml_backend_reg_name(reg);
        } else {
            info.reason = "it finds no device";
        }
    } else if (info.file.starts_with("libggml-cpu")) {
        info.reason = "another CPU module suits this machine better";
    } else {
        info.reason = "it loads, but finds no driver";
    }
    dlclose(handle);
    return info;
}

}  // namespace

void load_backends(const std::filesystem::path & directory) {
    static std::mutex mutex;
    static bool loaded = false;  // std::call_once would hang after an exception with some C libraries
    const std::lock_guard lock(mutex);
    if (loaded) {
        return;
    }
    module_directory = directory;
    llama_log_set(on_log, nullptr);
    ggml_set_abort_callback(on_failed_assertion);
    ggml_backend_load_all_from_path(directory.c_str());
    if (!ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) {
        std::string reasons;
        for (const ModuleInfo & module : modules()) {
            reasons += "\n  " + module.file + ": " + module.reason;
        }
        throw BackendError("no CPU backend could be loaded; the modules in " + directory.string() + ":" +
                           (reasons.empty() ? "\n  there is none" : reasons) +
                           "\nreinstall decider-native for this machine");
    }
    llama_backend_init();
    loaded = true;
}

std::vector<ModuleInfo> modules() {
    std::vector<ModuleInfo> result;
    std::error_code ignored;
    for (const auto & entry : std::filesystem::directory_iterator(module_directory, ignored)) {
        if (entry.path().filename().string().starts_with("libggml-")) {
            result.push_back(describe(entry.path()));
        }
    }
    std::ranges::sort(result, {}, &ModuleInfo::file);
    return result;
}

void * cpu_function(const char * name) {
    return ggml_backend_reg_get_proc_address(cpu_registry(), name);
}

std::vector<std::pair<std::string, std::string>> cpu_features() {
    const auto get = reinterpret_cast<ggml_backend_get_features_t>(cpu_function("ggml_backend_get_features"));
    std::vector<std::pair<std::string, std::string>> result;
    for (const ggml_backend_feature * f = get ? get(cpu_registry()) : nullptr; f && f->name; ++f) {
        result.emplace_back(f->name, f->value);
    }
    return result;
}

std::vector<DeviceInfo> devices() {
    std::vector<DeviceInfo> result;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        size_t free = 0;
        size_t total = 0;
        ggml_backend_dev_memory(device, &free, &total);
        result.push_back({ggml_backend_dev_name(device), ggml_backend_dev_description(device),
                          kind_name(ggml_backend_dev_type(device)),
                          ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)), free, total});
    }
    return result;
}

bool is_gpu(ggml_backend_dev_t device) {
    const auto type = ggml_backend_dev_type(device);
    return type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
}

ggml_backend_dev_t find_device(const std::string & request) {
    const std::string wanted = lower(request);
    if (wanted == "auto") {
        for (const auto type :
             {GGML_BACKEND_DEVICE_TYPE_GPU, GGML_BACKEND_DEVICE_TYPE_IGPU, GGML_BACKEND_DEVICE_TYPE_CPU}) {
            if (ggml_backend_dev_t device = ggml_backend_dev_by_type(type)) {
                return device;
            }
        }
    }
    std::string names;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        const std::string name = ggml_backend_dev_name(device);
        const std::string backend = lower(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)));
        if (wanted == lower(name) || wanted == backend || (wanted == "metal" && backend == "mtl")) {
            return device;
        }
        names += (names.empty() ? "" : ", ") + name;
    }
    throw BackendError("there is no device '" + request + "'; use 'auto' or one of: " + names);
}

std::vector<LogLine> drain_log() {
    const std::lock_guard lock(log_mutex);
    std::vector<LogLine> lines(log_lines.begin(), log_lines.end());
    log_lines.clear();
    return lines;
}

void set_log_level(int level) {
    log_level = level;
}

LogCapture::LogCapture() {
    capture = this;
}

LogCapture::~LogCapture() {
    capture = nullptr;
    for (LogLine & line : lines_) {
        keep(std::move(line));
    }
}

std::string LogCapture::errors() const {
    std::string text;
    for (const LogLine & line : lines_) {
        if (line.level == GGML_LOG_LEVEL_ERROR) {
            text += (text.empty() ? "" : "; ") + line.text;
        }
    }
    return text.empty() ? "no reason given" : text;
}

std::string run_alone(const std::function<void()> & work) {
    const LogCapture log;
    std::string reason;
    assertions_throw = true;
    try {
        work();
        reason = log.errors();
    } catch (const std::exception & error) {
        reason = error.what();
    }
    assertions_throw = false;
    return reason;
}

}  // namespace decider
