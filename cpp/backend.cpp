#include "backend.h"

#include "errors.h"

#include <dlfcn.h>
#include <ggml.h>
#include <llama.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <deque>
#include <mutex>

namespace decider {
namespace {

constexpr size_t kept_log_lines = 1000;

std::mutex log_mutex;
std::deque<LogLine> log_lines;
std::atomic<int> log_level = GGML_LOG_LEVEL_WARN;
thread_local LogCapture * capture = nullptr;

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

// Why the modules in `directory` do not load, a line each; a release build of ggml passes over them in silence.
std::string load_failures(const std::filesystem::path & directory) {
    std::string reasons;
    std::error_code ignored;
    for (const auto & entry : std::filesystem::directory_iterator(directory, ignored)) {
        if (!entry.path().filename().string().starts_with("libggml-")) {
            continue;
        }
        if (void * handle = dlopen(entry.path().c_str(), RTLD_NOW | RTLD_LOCAL)) {
            dlclose(handle);
            reasons += "\n  " + entry.path().filename().string() + ": loads, but does not support this machine";
        } else {
            reasons += std::string("\n  ") + dlerror();
        }
    }
    return reasons.empty() ? "\n  there is none" : reasons;
}

}  // namespace

void load_backends(const std::filesystem::path & directory) {
    static std::mutex mutex;
    static bool loaded = false;  // std::call_once would hang after an exception with some C libraries
    const std::lock_guard lock(mutex);
    if (loaded) {
        return;
    }
    llama_log_set(on_log, nullptr);
    ggml_backend_load_all_from_path(directory.c_str());
    if (!ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) {
        throw BackendError("no CPU backend could be loaded; the modules in " + directory.string() + ":" +
                           load_failures(directory) + "\nreinstall decider-native for this machine");
    }
    llama_backend_init();
    loaded = true;
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
    std::string names;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        const std::string name = ggml_backend_dev_name(device);
        const std::string backend = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device));
        const bool matches = wanted == "auto" ? is_gpu(device) : wanted == lower(name) || wanted == lower(backend);
        if (matches) {
            return device;
        }
        names += (names.empty() ? "" : ", ") + name;
    }
    if (wanted == "auto") {
        return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
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

}  // namespace decider
