/*
 * onepot order: print the order in which a rank reads its samples, for auditing. The numbers
 * come from the loader's own sampler.
 */
#include <inttypes.h>

#include "cli.h"
#include "commands.h"
#include "onepot.h"

static int order_main(int argc, char **argv);

const struct cli_command command_order = {
    "order", order_main, "print the order in which the loader reads samples",
    "--size N [--rank R --world W] [OPTION...]",
    "Print the order in which a rank reads N samples in an epoch, one index a line, as\n"
    "torch.utils.data.DistributedSampler has it. Rank and world size come from the launcher\n"
    "(torchrun, mpirun, srun...) by default; without one they are 0 and 1.\n"};

#define INDICES_AT_ONCE 4096

/* A third of printf's time, for orders of many millions. */
static void command_order_line(uint64_t number)
{
    char text[24], *end = text + sizeof(text), *at = end;
    *--at = '\n';
    do
        *--at = (char)('0' + number % 10);
    while (number /= 10);
    fwrite_unlocked(at, 1, (size_t)(end - at), stdout);
}

static void command_order_print(const struct onepot_sampler *sampler, bool padding)
{
    static uint64_t indices[INDICES_AT_ONCE];
    static uint8_t valid[INDICES_AT_ONCE];
    uint64_t length = onepot_sampler_length(sampler);
    for (uint64_t at = 0; at < length && !ferror(stdout);) {
        uint64_t count = length - at < INDICES_AT_ONCE ? length - at : INDICES_AT_ONCE;
        onepot_sampler_get(sampler, at, count, indices, valid);
        for (uint64_t i = 0; i < count; i++)
            if (valid[i] || padding)
                command_order_line(indices[i]);
        at += count;
    }
}

/* "K/N" */
static int take_worker(const struct cli_command *u, void *ctx, const char *text)
{
    struct onepot_sampler_options *options = ctx;
    if (cli_parse_part(text, UINT32_MAX, &options->worker, &options->workers) < 0)
        return cli_usage_error(u, "--worker: '%s' is not K/N with K below N, such as 0/4",
                               text);
    return 0;
}

struct request {
    struct onepot_sampler_options options;
    bool has_size, has_rank, no_padding;
};

static int check_request(const struct request *request)
{
    const struct onepot_sampler_options *o = &request->options;
    if (!request->has_size)
        return cli_usage_error(&command_order, "the number of samples is missing (--size)");
    if (request->has_rank && o->world_size == 0)
        return cli_usage_error(&command_order, "--rank needs --world");
    if (!request->has_rank && o->world_size > 1)
        return cli_usage_error(&command_order, "--world needs --rank");
    if (request->has_rank && o->rank >= o->world_size)
        return cli_usage_error(&command_order, "rank %" PRIu64 " is not below --world %" PRIu64,
                               o->rank, o->world_size);
    return 0;
}

static int order_main(int argc, char **argv)
{
    struct request request = {.options = {.size = sizeof(request.options)}};
    struct onepot_sampler_options *o = &request.options;
    const struct cli_option options[] = {
        {"--size=N", "number of samples", .flag = &request.has_size, .number = &o->samples,
         .max = INT64_MAX / 8},
        {"--rank=R", "which rank, below W", .flag = &request.has_rank, .number = &o->rank,
         .max = UINT32_MAX - 1},
        {"--world=W", "number of ranks", .number = &o->world_size, .min = 1, .max = UINT32_MAX},
        {"--seed=S", "seed of the shuffle (default 0)", .number = &o->seed, .max = UINT64_MAX},
        {"--epoch=E", "number of the epoch, added to the seed (default 0)", .number = &o->epoch,
         .max = UINT64_MAX},
        {"--drop-last",
         "leave out the tail that can't be dealt evenly (default: fill up with samples from "
         "the "
         "beginning)",
         .flag = &o->drop_last},
        {"--no-shuffle", "in the order of the archive", .flag = &o->no_shuffle},
        {"--no-padding", "don't print samples that only fill up", .flag = &request.no_padding},
        {"--worker=K/N", "the share of worker K of N of this rank", .take = take_worker,
         .ctx = o},
        {"--block=B", "shuffle blocks of B samples, then within windows of them",
         .number = &o->block, .min = 1, .max = INT64_MAX},
        {"--window=N", "blocks that are shuffled together (default 64)", .number = &o->window,
         .min = 1, .max = INT64_MAX},
        {NULL},
    };
    struct onepot_error error;
    struct onepot_sampler *sampler;
    int status = cli_parse(&command_order, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (optind < argc)
        return cli_usage_error(&command_order, "unexpected argument '%s'", argv[optind]);
    if (check_request(&request) != 0)
        return CLI_USAGE;
    uint64_t rank, world;
    if (!request.has_rank && onepot_launcher_rank(&rank, &world, &error) > 0)
        cli_note("%s", error.text);
    if (onepot_sampler_new(o, &error, &sampler) < 0)
        return cli_failf(NULL, "%s", error.text);
    command_order_print(sampler, !request.no_padding);
    onepot_sampler_free(sampler);
    return CLI_OK;
}
