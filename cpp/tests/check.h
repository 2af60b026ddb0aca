// The whole test framework: a failed check is printed and remembered.
#pragma once

#include <cstdio>

inline int failed_checks = 0;

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            ++failed_checks;                                                     \
        }                                                                        \
    } while (false)
