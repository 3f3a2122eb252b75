/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The elements `gemodel` (loss) and `delay`, with the meaning and the parameter names of tc-netem(8), and a random
 * generator whose sequence depends only on its seed, on every machine.
 */

#include "elements.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
static uint64_t next_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* Draws uniformly from [0, 1): never below a probability of 0, always below a probability of 1. */
static double draw(struct element *element)
{
	return (double)(next_random(&element->random) >> 11) * 0x1p-53;
}

static bool read_probability(const char *text, double *value)
{
	char *end;

	*value = strtod(text, &end);
	return *text != '\0' && *end == '\0' && isfinite(*value) && *value >= 0.0 && *value <= 1.0;
}

static bool read_whole(const char *text, uint64_t maximum, uint64_t *value)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*value = strtoull(text, &end, 10);
	return *end == '\0' && errno == 0 && *value <= maximum;
}

static bool make_gemodel(struct element *element, char *const *arguments)
{
	element->gemodel.bad = false;
	return read_probability(arguments[0], &element->gemodel.p) &&
	       read_probability(arguments[1], &element->gemodel.r) &&
	       read_probability(arguments[2], &element->gemodel.lost_if_bad) &&
	       read_probability(arguments[3], &element->gemodel.lost_if_good) &&
	       read_whole(arguments[4], UINT64_MAX, &element->random);
}

/* The current state determines the packet's fate. Then the chain changes its state. */
static enum fate apply_gemodel(struct element *element, struct packet *packet)
{
	bool bad = element->gemodel.bad;
	double loss = bad ? element->gemodel.lost_if_bad : element->gemodel.lost_if_good;
	enum fate fate = draw(element) < loss ? LOST : PASSES;

	(void)packet;
	if (draw(element) < (bad ? element->gemodel.r : element->gemodel.p))
		element->gemodel.bad = !bad;
	return fate;
}

static bool make_delay(struct element *element, char *const *arguments)
{
	const uint64_t maximum = (uint64_t)INT64_MAX / 4 / NANOSECONDS_PER_MICROSECOND;
	uint64_t delay, jitter;

	if (!read_whole(arguments[0], maximum, &delay) || !read_whole(arguments[1], delay, &jitter) ||
	    !read_whole(arguments[2], UINT64_MAX, &element->random))
		return false;
	element->delay.minimum = (int64_t)(delay - jitter) * NANOSECONDS_PER_MICROSECOND;
	element->delay.spread = (int64_t)(2 * jitter) * NANOSECONDS_PER_MICROSECOND;
	element->delay.last = 0;
	return true;
}

/* A packet with a short delay waits for the packet before it, so that packets keep their order, as on a link. */
static enum fate apply_delay(struct element *element, struct packet *packet)
{
	packet->due += element->delay.minimum;
	if (element->delay.spread > 0)
		packet->due += (int64_t)(draw(element) * (double)element->delay.spread);
	if (packet->due < element->delay.last)
		packet->due = element->delay.last;
	element->delay.last = packet->due;
	return PASSES;
}

static const struct element_kind element_kinds[] = {
	{ "gemodel", "P R 1-H 1-K SEED", 5, make_gemodel, apply_gemodel },
	{ "delay", "MICROSECONDS JITTER SEED", 3, make_delay, apply_delay },
};

int element_make(struct element *element, char *const *words, int count)
{
	for (size_t i = 0; i < sizeof(element_kinds) / sizeof(element_kinds[0]); i++) {
		const struct element_kind *kind = &element_kinds[i];

		if (strcmp(words[0], kind->name) != 0)
			continue;
		element->kind = kind;
		if (count > kind->count && kind->make(element, words + 1))
			return 1 + kind->count;
		fprintf(stderr, "emulator: %s needs %s; probabilities are 0 to 1, the rest whole numbers, jitter at "
			"most the delay\n", kind->name, kind->arguments);
		return -1;
	}
	fprintf(stderr, "emulator: no element is called '%s'\n", words[0]);
	return -1;
}
