/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Fuzz tests for shim/turns/fair_turns.c, included by turns.c in this directory: accepted clients, and epoll events
 * that represent clients.
 */

/* Whether the fuzzer's descriptor *fd* is a listener. */
static bool is_listener_fd(int fd)
{
	return fd >= 0 && fd % 2 == 0;
}

/* Whether the fuzzer's descriptor *fd* is ready only for writing, so that no connection waits there. */
static bool is_writable_only(int fd)
{
	return fd % 3 == 0;
}

/* Simulate the accept of a client whose address is *data*. The library must not read past the end of the address, and
 * must assign a place (an index of clients[]) to a client with an IP address and a port. */
static void try_client(const uint8_t *data, size_t size)
{
	struct sockaddr_storage address = { 0 };
	socklen_t length = size > sizeof address ? sizeof address : size, returned = sizeof address;
	void *exact = malloc(length > 0 ? length : 1);
	unsigned int place;

	memcpy(exact, data, length);
	fair = true;
	assert(process_accepted(-1, 7, exact, &returned, length) == 7);
	place = place_at(7);
	assert((place != 0) == (port_of(exact, length) != 0) && (place == 0 || place < place_count));
	assert(place == 0 || clients[place].descriptor_count == 1);
	assert(process_accepted(DESCRIPTORS, -1, exact, &returned, length) == -1);
	assert(process_accepted(7, DESCRIPTORS, exact, &returned, length) == DESCRIPTORS);
	forget(7), forget(7), forget(-1), forget(DESCRIPTORS);
	assert(place_at(-1) == 0 && place_at(DESCRIPTORS) == 0 && place_at(7) == 0 && clients[place].descriptor_count == 0);
	fair = false;
	free(exact);
}

/* The first *others* events do not represent clients; even descriptors are listeners. *allowed*: the number of accepts
 * that a listener may make in this turn. The event of a listener at which a connection waits must occur *allowed*
 * times, as far as *room* permits, and the number must double for the next turn, up to MAX_ACCEPTS. Each other event
 * must occur once. */
static void try_accepts(struct epoll_event *events, int others, unsigned int allowed, int room)
{
	unsigned int waiting_listeners = 0, max = others + room, reported[CLIENTS + 1] = { 0 };
	int count;

	for (int i = 0; i < others; i++) {
		int fd = events[i].data.fd;

		events[i].events = is_writable_only(fd) ? EPOLLOUT : EPOLLIN;
		if (fd >= 0)
			descriptors[fd].is_listener = is_listener_fd(fd);
		waiting_listeners += is_listener_fd(fd) && !is_writable_only(fd);
	}
	accepts = allowed;
	count = add_accepts(events, others, others, max);
	assert(count >= others && count <= (int)max);
	assert(count == (int)max || count == others + (int)(waiting_listeners * (allowed - 1)));
	assert(accepts == (waiting_listeners == 0 ? 1 : allowed < MAX_ACCEPTS ? 2 * allowed : MAX_ACCEPTS));
	for (int i = 0; i < count; i++)
		if (events[i].data.fd >= 0)
			reported[events[i].data.fd]++;
	for (int i = 0; i < others; i++) {
		int fd = events[i].data.fd;

		if (fd >= 0)
			assert(reported[fd] >= 1 &&
			       reported[fd] <= (descriptors[fd].is_listener && !is_writable_only(fd) ? allowed : 1));
		forget(fd);
	}
	accepts = 1;
}

/* Each byte is an event; it represents a client if the byte modulo 7 is 3. The other events must keep their order. All
 * clients must get the same number of events, at least one: together at most the room, and at most EVENTS_PER_TURN
 * unless there are more clients than that. */
static void try_fair_turn(const uint8_t *data, size_t size)
{
	struct epoll_event events[CLIENTS + 256];
	uint16_t ready[CLIENTS];
	int found, others, at = 0, share;
	size_t count = size < CLIENTS ? size : CLIENTS - 1;

	for (size_t i = 0; i < count; i++)
		events[i] = (struct epoll_event){ .data.fd = data[i] % 7 == 3 ? mark_of_place(i + 1) : data[i] == 11 ? -1 : (int)i };
	others = split_events(events, count, ready, &found);
	assert(others >= 0 && others + found == (int)count);
	for (size_t i = 0; i < count; i++)
		if (data[i] % 7 != 3) {
			assert(events[at].data.fd == (data[i] == 11 ? -1 : (int)i));
			at++;
		}
	for (int i = 0; i < found; i++)
		assert(ready[i] >= 1 && data[ready[i] - 1] % 7 == 3 && (i == 0 || ready[i] > ready[i - 1]));
	for (int room = found; found > 0 && room < 4 * EVENTS_PER_TURN; room++) {
		share = share_of(found, room);
		assert(share >= 1 && share * found <= room);
		assert(share * found <= (found > EVENTS_PER_TURN ? found : EVENTS_PER_TURN));
		assert(share == 1 || (share + 1) * found > (room < EVENTS_PER_TURN ? room : EVENTS_PER_TURN));
	}
	fair = true;
	try_accepts(events, others, size > 0 ? 1 << data[0] % 4 : 1, size > 1 ? data[1] : 0);
	fair = false;
}
