/*
 * onepot order: print the order in which a rank reads its samples, for auditing. The numbers
 * come from the loader's own sampler. Ten million of them are printed in about a second,
 * because each is formatted by hand into a large buffer.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "cli.h"
#include "commands.h"
#include "onepot.h"

static const struct cli_usage usage = {
    "order", "--size N [--rank R --world W] [OPTION...]",
    "Print the order in which a rank reads N samples in an epoch, one index a line: that\n"
    "of torch.utils.data.DistributedSampler. Rank and world size are by default those that\n"
    "a launcher (torchrun, mpirun, srun...) gave to this process, else 0 of 1.\n"
    "\n"
    "      --size N          number of samples\n"
    "      --rank R          which rank, below W\n"
    "      --world W         number of ranks\n"
    "      --seed S          seed of the shuffle (default 0)\n"
    "      --epoch E         number of the epoch, added to the seed (default 0)\n"
    "      --drop-last       leave out the tail that can't be dealt evenly (default: fill\n"
    "                        up with samples from the beginning)\n"
    "      --no-shuffle      in the order of the archive\n"
    "      --no-padding      don't print what only fills up\n"
    "      --worker K/N      the share of worker K of N of this rank\n"
    "      --block B         shuffle blocks of B samples, then within windows of them\n"
    "      --window N        blocks that are shuffled together (default 64)\n"};

enum {
    OPTION_SIZE = CLI_OPTION_OWN,
    OPTION_RANK,
    OPTION_WORLD,
    OPTION_SEED,
    OPTION_EPOCH,
    OPTION_DROP_LAST,
    OPTION_NO_SHUFFLE,
    OPTION_NO_PADDING,
    OPTION_WORKER,
    OPTION_BLOCK,
    OPTION_WINDOW,
};

#define INDICES_AT_ONCE 4096
#define DIGITS_MAX 20

/* Write decimal digits and a newline at `out`; returns their end. */
static char *put_number(char *out, uint64_t number)
{
    char digits[DIGITS_MAX], *d = digits + DIGITS_MAX;
    do {
        *--d = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    size_t len = (size_t)(digits + DIGITS_MAX - d);
    memcpy(out, d, len);
    out[len] = '\n';
    return out + len + 1;
}

static void print_order(const struct onepot_sampler *sampler, bool padding)
{
    static uint64_t indices[INDICES_AT_ONCE];
    static uint8_t valid[INDICES_AT_ONCE];
    static char text[INDICES_AT_ONCE * (DIGITS_MAX + 1)];
    uint64_t length = onepot_sampler_length(sampler);
    for (uint64_t at = 0; at < length && !ferror(stdout);) {
        uint64_t count = length - at < INDICES_AT_ONCE ? length - at : INDICES_AT_ONCE;
        char *end = text;
        onepot_sampler_get(sampler, at, count, indices, valid);
        for (uint64_t i = 0; i < count; i++)
            if (valid[i] || padding)
                end = put_number(end, indices[i]);
        fwrite(text, 1, (size_t)(end - text), stdout);
        at += count;
    }
}

/* "K/N" */
static int parse_worker(const char *text, struct onepot_sampler_options *options)
{
    char first[DIGITS_MAX + 1] = "";
    const char *slash = strchr(text, '/');
    if (!slash || (size_t)(slash - text) >= sizeof(first))
        return cli_usage_error(&usage, "'%s' is no worker: it looks like 0/4", text);
    memcpy(first, text, (size_t)(slash - text));
    if (cli_parse_number(first, 0, UINT32_MAX, &options->worker) < 0 ||
        cli_parse_number(slash + 1, 1, UINT32_MAX, &options->workers) < 0 ||
        options->worker >= options->workers)
        return cli_usage_error(&usage, "'%s' is no worker: it looks like 0/4", text);
    return 0;
}

struct request {
    struct onepot_sampler_options options;
    bool has_size, has_rank, padding;
};

static int number(const char *name, uint64_t min, uint64_t max, uint64_t *ret)
{
    return cli_number_option(&usage, name, optarg, min, max, ret);
}

static int take_option(int opt, struct request *request)
{
    struct onepot_sampler_options *o = &request->options;
    switch (opt) {
    case OPTION_SIZE:
        request->has_size = true;
        return number("--size", 0, INT64_MAX / 8, &o->samples);
    case OPTION_RANK:
        request->has_rank = true;
        return number("--rank", 0, UINT32_MAX - 1, &o->rank);
    case OPTION_WORLD:
        return number("--world", 1, UINT32_MAX, &o->world_size);
    case OPTION_SEED:
        return number("--seed", 0, UINT64_MAX, &o->seed);
    case OPTION_EPOCH:
        return number("--epoch", 0, UINT64_MAX, &o->epoch);
    case OPTION_DROP_LAST:
        o->drop_last = true;
        return 0;
    case OPTION_NO_SHUFFLE:
        o->no_shuffle = true;
        return 0;
    case OPTION_NO_PADDING:
        request->padding = false;
        return 0;
    case OPTION_WORKER:
        return parse_worker(optarg, o);
    case OPTION_BLOCK:
        return number("--block", 1, INT64_MAX, &o->block);
    case OPTION_WINDOW:
        return number("--window", 1, INT64_MAX, &o->window);
    default:
        return 0;
    }
}

static int check_request(const struct request *request)
{
    const struct onepot_sampler_options *o = &request->options;
    if (!request->has_size)
        return cli_usage_error(&usage, "the number of samples is missing (--size)");
    if (request->has_rank && o->world_size == 0)
        return cli_usage_error(&usage, "--rank needs --world");
    if (!request->has_rank && o->world_size > 1)
        return cli_usage_error(&usage, "--world needs --rank");
    if (request->has_rank && o->rank >= o->world_size)
        return cli_usage_error(&usage, "rank %" PRIu64 " is not below --world %" PRIu64,
                               o->rank, o->world_size);
    return 0;
}

int command_order(int argc, char **argv)
{
    static const struct option longs[] = {
        {"size", required_argument, NULL, OPTION_SIZE},
        {"rank", required_argument, NULL, OPTION_RANK},
        {"world", required_argument, NULL, OPTION_WORLD},
        {"seed", required_argument, NULL, OPTION_SEED},
        {"epoch", required_argument, NULL, OPTION_EPOCH},
        {"drop-last", no_argument, NULL, OPTION_DROP_LAST},
        {"no-shuffle", no_argument, NULL, OPTION_NO_SHUFFLE},
        {"no-padding", no_argument, NULL, OPTION_NO_PADDING},
        {"worker", required_argument, NULL, OPTION_WORKER},
        {"block", required_argument, NULL, OPTION_BLOCK},
        {"window", required_argument, NULL, OPTION_WINDOW},
        CLI_OPTIONS_END,
    };
    struct request request = {.options = {.size = sizeof(request.options)}, .padding = true};
    struct onepot_error error;
    struct onepot_sampler *sampler;
    int opt, status = CLI_GO_ON;
    while ((opt = cli_getopt(&usage, argc, argv, "", longs, &status)) != -1)
        if (take_option(opt, &request) != 0)
            return CLI_USAGE;
    if (status != CLI_GO_ON)
        return status;
    if (optind < argc)
        return cli_usage_error(&usage, "'%s' is one word too many", argv[optind]);
    if (check_request(&request) != 0)
        return CLI_USAGE;
    uint64_t rank, world;
    if (!request.has_rank && onepot_launcher_rank(&rank, &world, &error) > 0)
        cli_note("%s", error.text);
    if (onepot_sampler_new(&request.options, &error, &sampler) < 0)
        return cli_failf(NULL, "%s", error.text);
    print_order(sampler, request.padding);
    onepot_sampler_free(sampler);
    return CLI_OK;
}
