/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Runs a fuzz target without libFuzzer: "replay COUNT FILE..." runs it on each file, then on COUNT damaged copies.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SIZE 2048

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
	uint8_t data[MAX_SIZE];
	size_t size;
};

static void damage(struct input *input)
{
	for (int i = rand() % 6; i >= 0; i--) {
		size_t at = rand() % (input->size + 1), length = rand() % 8 + 1;

		switch (rand() % 4) {
		case 0: /* flip a bit */
			if (at < input->size)
				input->data[at] ^= 1 << rand() % 8;
			break;
		case 1: /* replace a byte with a character that has a meaning */
			if (at < input->size)
				input->data[at] = "0123456789:,=/ -\0\n"[rand() % 18];
			break;
		case 2: /* repeat some bytes */
			if (input->size + length < MAX_SIZE && at + length <= input->size) {
				memmove(input->data + at + length, input->data + at, input->size - at);
				input->size += length;
			}
			break;
		case 3: /* remove some bytes */
			if (at + length <= input->size) {
				memmove(input->data + at, input->data + at + length, input->size - at - length);
				input->size -= length;
			}
			break;
		}
	}
}

int main(int argc, char **argv)
{
	struct input *seeds = calloc(argc, sizeof *seeds), input;
	int found = 0;

	for (int i = 2; i < argc; i++) {
		FILE *file = fopen(argv[i], "rb");

		if (file == NULL)
			return 2;
		seeds[found].size = fread(seeds[found].data, 1, MAX_SIZE, file);
		fclose(file);
		LLVMFuzzerTestOneInput(seeds[found].data, seeds[found].size);
		found++;
	}
	srand(8684);
	for (long remaining = argc > 1 && found > 0 ? atol(argv[1]) : 0; remaining > 0; remaining--) {
		input = seeds[rand() % found];
		damage(&input);
		LLVMFuzzerTestOneInput(input.data, input.size);
	}
	printf("%d files\n", found);
	free(seeds);
	return 0;
}
