// The native side of the exception tree. Each type becomes the class of the same name in decider_native.errors.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace decider {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
    virtual const char * python_class() const = 0;
};

struct InvalidRequest final : Error {
    using Error::Error;
    const char * python_class() const override { return "InvalidRequest"; }
};

struct PayloadTooLarge final : Error {
    PayloadTooLarge(const std::string & message, int64_t tokens, int64_t limit)
        : Error(message), tokens(tokens), limit(limit) {}
    const char * python_class() const override { return "PayloadTooLarge"; }
    int64_t tokens;
    int64_t limit;
};

struct DeadlineExceeded final : Error {
    using Error::Error;
    const char * python_class() const override { return "DeadlineExceeded"; }
};

struct Cancelled final : Error {
    using Error::Error;
    const char * python_class() const override { return "Cancelled"; }
};

struct Closed final : Error {
    using Error::Error;
    const char * python_class() const override { return "Closed"; }
};

struct ModelLoadError final : Error {
    using Error::Error;
    const char * python_class() const override { return "ModelLoadError"; }
};

struct BackendError final : Error {
    using Error::Error;
    const char * python_class() const override { return "BackendError"; }
};

}  // namespace decider
