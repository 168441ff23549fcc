#include "consume.h"

uint64_t consume(const uint8_t *bytes, uint64_t len)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < len; i += 64)
        sum += bytes[i];
    return sum;
}
