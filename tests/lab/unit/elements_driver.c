/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Sends packets through a chain of the emulator's elements, without a kernel.
 *
 *     elements_driver COUNT GAP ELEMENT ...
 *
 * COUNT packets arrive GAP nanoseconds apart, the first at time 0. For each packet, the program prints a line with the
 * time when it leaves, or "lost". */

#include "elements.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	struct element chain[8];
	int length = 0;

	for (int i = 3; i < argc;) {
		int taken = element_make(&chain[length++], argv + i, argc - i);

		if (taken < 0)
			return 1;
		i += taken;
	}
	for (long i = 0; i < atol(argv[1]); i++) {
		struct packet packet = { .due = i * atol(argv[2]) };
		enum fate fate = PASSES;

		for (int j = 0; j < length && fate == PASSES; j++)
			fate = chain[j].kind->apply(&chain[j], &packet);
		if (fate == LOST)
			puts("lost");
		else
			printf("%" PRId64 "\n", packet.due);
	}
	return 0;
}
