/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A middlebox without a kernel. Each line of input is "up HEX", "down HEX" or "wait NANOSECONDS". For each, the program
 * prints a line "HEX" for each packet that leaves, and then an empty line. At the end, it prints the number of changed
 * packets.
 */

#include "behaviours.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print(const uint8_t *packet, size_t length)
{
	for (size_t i = 0; i < length; i++)
		printf("%02x", packet[i]);
	putchar('\n');
}

int main(int argc, char **argv)
{
	static char line[2 * MAX_PACKET + 64];
	static uint8_t packet[MAX_PACKET];
	int64_t now = 0;

	if (argc != 2 || !behaviour_choose(argv[1]))
		return EXIT_FAILURE;
	while (fgets(line, sizeof(line), stdin) != NULL) {
		char *word = strtok(line, " \n"), *rest = strtok(NULL, " \n");

		if (word == NULL || rest == NULL)
			return EXIT_FAILURE;
		if (strcmp(word, "wait") == 0) {
			now += atoll(rest);
			behaviour_release(now, print);
		} else {
			size_t length = strlen(rest) / 2;

			for (size_t i = 0; i < length; i++) {
				unsigned int byte;

				sscanf(rest + 2 * i, "%2x", &byte);
				packet[i] = (uint8_t)byte;
			}
			behaviour_apply(strcmp(word, "up") == 0 ? UP : DOWN, packet, length, now, print);
		}
		putchar('\n');
	}
	printf("%lu\n", behaviour_changed());
	return EXIT_SUCCESS;
}
