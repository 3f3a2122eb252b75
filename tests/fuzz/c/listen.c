/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Fuzz target for mptcp_listen.so. The first byte selects the kind of input (modulo 13); the other bytes are the input:
 *   0 a list of ports;
 *   1 the address of bind(2);
 *   2 an environment, with entries separated by '\0';
 *   3 LD_PRELOAD and the path of the library;
 *   4 the name of a program;
 *   6 the address of connect(2);
 *   7 a list of parents;
 *   8 actions at both ends of four connections.
 * turns.c uses the other numbers. A failed assertion aborts the process.
 *
 * The library's own sources are part of this file, so that its static functions can be called.
 */

#define _GNU_SOURCE

#include <assert.h>

#include "both/scope.c"
#include "both/hooks.c"
#include "listen/swap.c"
#include "listen/late_writes.c"
#include "listen/listeners.c"
#include "listen/parents.c"
#include "listen/hooks.c"

#include "room.h"

#include <ctype.h>
#include <stdint.h>

/* Computes the result of contains_port() in another way: word by word. */
static bool contains_port_by_words(const char *list, int port)
{
	bool found = false;

	for (const char *at = list; *at != '\0';) {
		size_t digits = strspn(at, "0123456789");
		size_t zeros = strspn(at, "0");
		char number[8];

		snprintf(number, sizeof number, "%d", port);
		if (digits > zeros && digits - zeros == strlen(number) && strncmp(at + zeros, number, digits - zeros) == 0)
			found = found || at == list || at[-1] != '-';
		at += digits > 0 ? digits : 1;
	}
	return found;
}

static void try_ports(const char *list)
{
	static const int ports[] = { 1, 312, 3128, 3129, 31280, 65535 };

	for (size_t i = 0; i < sizeof ports / sizeof *ports; i++)
		assert(contains_port(list, ports[i]) == contains_port_by_words(list, ports[i]));
}

static void try_address(const uint8_t *data, size_t size)
{
	struct sockaddr_storage address = { 0 };
	/* Allocate on the heap, so that the sanitizer detects a read past the end. */
	void *copy_of_exact_size = malloc(size > 0 ? size : 1);
	int port;

	if (size > sizeof address)
		size = sizeof address;
	memcpy(copy_of_exact_size, data, size);
	memcpy(&address, data, size);
	port = port_of(copy_of_exact_size, size);
	assert(port >= 0 && port <= 65535);
	if (!(address.ss_family == AF_INET && size >= sizeof(struct sockaddr_in)) &&
	    !(address.ss_family == AF_INET6 && size >= sizeof(struct sockaddr_in6)))
		assert(port == 0);
	free(copy_of_exact_size);
	assert(port_of(NULL, 16) == 0);
}

#define MAX_ENTRIES 64

static size_t split(char *text, size_t size, char *entries[])
{
	size_t found = 0;

	for (size_t at = 0; at < size && found < MAX_ENTRIES; at += strlen(text + at) + 1)
		entries[found++] = text + at;
	entries[found] = NULL;
	return found;
}

static void try_environment(char *text, size_t size)
{
	char *entries[MAX_ENTRIES + 1], *copy[MAX_ENTRIES + OWN_ENTRIES + 1];
	size_t own[OWN_ENTRIES] = { 0 }, others = 0, length;

	length = split(text, size, entries);
	assert(count_entries(entries) == length);
	for (size_t i = 0; i < OWN_ENTRIES; i++)
		if (i < 2 || length % (i + 1) != 0)
			assert(asprintf(&own_entries[i], "%s=%zu", own_names[i], i) > 0);
	add_own_entries(entries, copy);
	for (char **each = copy; *each != NULL; each++) {
		for (size_t i = 0; i < OWN_ENTRIES; i++)
			own[i] += is_entry(*each, own_names[i]);
		others++;
	}
	for (size_t i = 0; i < OWN_ENTRIES; i++)
		assert(own[i] == (own_entries[i] != NULL));
	assert(others <= length + OWN_ENTRIES);
	for (size_t i = 0; i < OWN_ENTRIES; i++) {
		free(own_entries[i]);
		own_entries[i] = NULL;
	}
}

/* The text is the value of LD_PRELOAD, '\0', and the path from which the library was loaded. */
static void try_preload(char *text, size_t size)
{
	const char *value = text, *path = text + strlen(text) + 1;
	char **before = environ, *empty[] = { NULL }, *remaining;

	if (path >= text + size || *path == '\0' || strpbrk(path, ": ") != NULL)
		return;
	environ = empty;
	setenv(PRELOAD, value, 1);
	hide_from_children(path);
	remaining = getenv(PRELOAD);
	assert(remaining == NULL || strlen(remaining) <= strlen(value));
	for (const char *at = remaining == NULL ? "" : remaining; *at != '\0'; at += at[strcspn(at, ": ")] != '\0' ? strcspn(at, ": ") + 1 : strlen(at))
		assert(!is_own_library(at, strcspn(at, ": "), path));
	unsetenv(PRELOAD);
	environ = before;
}

static void try_program(char *text)
{
	char **before = environ, *path = NULL, *only_path[] = { NULL, NULL };

	assert(!names_own_program(text) || access(text, F_OK) == 0);
	/* Do not use setenv(3), which never frees an earlier value. */
	if (asprintf(&path, "PATH=%s", text) < 0)
		return;
	only_path[0] = path;
	environ = only_path;
	assert(!finds_own_program("no-such-program"));
	finds_own_program(NULL);
	finds_own_program(text);
	environ = before;
	free(path);
}

/* inet_pton(3) and strtoul(3) must read the written form of an address as the same address. */
static void try_target(const uint8_t *data, size_t size)
{
	struct sockaddr_storage address = { 0 };
	void *copy_of_exact_size;
	char target[TARGET_SIZE], *colon;
	unsigned char bytes[16], mapped[16] = { [10] = 0xff, [11] = 0xff };

	if (size < 1)
		return;
	/* Set a known address family in most cases, because most inputs would have an unknown one. */
	size = size - 1 > sizeof address ? sizeof address : size - 1;
	memcpy(&address, data + 1, size);
	address.ss_family = data[0] % 3 == 0 ? AF_INET : data[0] % 3 == 1 ? AF_INET6 : address.ss_family;
	copy_of_exact_size = malloc(size > 0 ? size : 1);
	memcpy(copy_of_exact_size, &address, size);
	if (write_target(copy_of_exact_size, size, target)) {
		assert(strlen(target) < TARGET_SIZE && strpbrk(target, ", \t\n") == NULL);
		colon = strrchr(target, ':');
		assert(strtoul(colon + 1, NULL, 10) == (unsigned long)port_of(copy_of_exact_size, size));
		*colon = '\0';
		if (address.ss_family == AF_INET) {
			assert(inet_pton(AF_INET, target, bytes) == 1);
			assert(memcmp(bytes, &((struct sockaddr_in *)&address)->sin_addr, 4) == 0);
		} else if (target[0] == '[') {
			colon[-1] = '\0';
			assert(inet_pton(AF_INET6, target + 1, bytes) == 1);
			assert(memcmp(bytes, &((struct sockaddr_in6 *)&address)->sin6_addr, 16) == 0);
			assert(memcmp(bytes, mapped, 12) != 0);
		} else {
			assert(inet_pton(AF_INET, target, mapped + 12) == 1);
			assert(memcmp(mapped, &((struct sockaddr_in6 *)&address)->sin6_addr, 16) == 0);
		}
	} else {
		assert(port_of(copy_of_exact_size, size) == 0);
	}
	free(copy_of_exact_size);
}

/* Computes the result of contains_target() in another way: with strtok(3). */
static void try_parents(char *text)
{
	static const char *const targets[] = { "192.0.2.1:3128", "[2001:db8::1]:3128", "192.0.2.1:312", "1:1" };

	for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
		char *copy = strdup(text), *position = NULL;
		bool found = false;

		for (char *word = strtok_r(copy, ", \t\n", &position); word != NULL; word = strtok_r(NULL, ", \t\n", &position))
			found = found || strcmp(word, targets[i]) == 0;
		assert(contains_target(text, targets[i]) == found);
		free(copy);
	}
}

#define PAIRS 4

/* Opens both ends of an MPTCP connection over loopback. Returns false if the host does not support MPTCP. */
static bool open_connection(int *server, int *client)
{
	static int listener = -1;
	static struct sockaddr_in address;
	socklen_t length = sizeof address;

	if (listener < 0) {
		address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		listener = socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
		if (listener < 0)
			return false;
		assert(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, PAIRS) == 0);
		assert(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	}
	*client = socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
	assert(*client >= 0 && connect(*client, (struct sockaddr *)&address, sizeof address) == 0);
	*server = accept(listener, NULL, NULL);
	assert(*server >= 0);
	return true;
}

static void end_client(int *client)
{
	if (*client > 0)
		next_close(*client);
	*client = -1;
}

static void end_server(int *server)
{
	if (*server > 0)
		assert(close(*server) == 0 && fcntl(*server, F_GETFD) == -1);
	*server = -1;
}

static void take_action(int *server, int *client, int action)
{
	static const struct linger reset = { .l_onoff = 1 };
	char buffer[64] = "";

	switch (action) {
	case 0: send(*server, buffer, sizeof buffer, MSG_NOSIGNAL | MSG_DONTWAIT); break;
	case 1: send(*client, buffer, sizeof buffer, MSG_NOSIGNAL | MSG_DONTWAIT); break;
	case 2: recv(*client, buffer, sizeof buffer, MSG_DONTWAIT); break;
	case 3: recv(*server, buffer, sizeof buffer, MSG_DONTWAIT); break;
	case 4: shutdown(*client, SHUT_WR); break;
	case 6: end_client(client); break;
	case 7: end_server(server); break;
	}
}

static int count_held_descriptors(void)
{
	int count = 0;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < MAX_HELD_CONNECTIONS; i++)
		count += held[i].fd > 0;
	pthread_mutex_unlock(&lock);
	return count;
}

/* A descriptor that the program closed must be closed. The library must hold no descriptor after all clients have
 * disconnected. */
static void try_closes(const uint8_t *data, size_t size)
{
	const struct timespec pause = { .tv_nsec = 100 * 1000 };
	time_t begin;
	int servers[PAIRS] = { 0 }, clients[PAIRS] = { 0 };

	start();
	late_writes = true;
	for (size_t i = 0; i < size && i < 64; i++) {
		int pair = data[i] % PAIRS;

		if (servers[pair] == 0 && !open_connection(&servers[pair], &clients[pair]))
			break;
		take_action(&servers[pair], &clients[pair], data[i] / PAIRS % 8);
	}
	for (int i = 0; i < PAIRS; i++) {
		end_server(&servers[i]);
		end_client(&clients[i]);
	}
	for (begin = now(); count_held_descriptors() > 0; nanosleep(&pause, NULL))
		assert(now() < begin + 8);
	for (int i = 0; i < PAIRS; i++)
		assert(first_copy == 0 || fcntl(first_copy + i, F_GETFD) == -1);
	late_writes = false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text;

	if (size == 0)
		return 0;
	/* The library's input ends with '\0', as an environment does. */
	text = malloc(size);
	memcpy(text, data + 1, size - 1);
	text[size - 1] = '\0';
	switch (data[0] % 13) {
	case 0: try_ports(text); break;
	case 1: try_address(data + 1, size - 1); break;
	case 2: try_environment(text, size - 1); break;
	case 3: try_preload(text, size - 1); break;
	case 4: try_program(text); break;
	case 6: try_target(data + 1, size - 1); break;
	case 7: try_parents(text); break;
	case 8: try_closes(data + 1, size - 1); break;
	}
	free(text);
	return 0;
}
