/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The part of turns.c that tests fair_turns.c: accepted clients, and the epoll events that represent clients.
 */

/* Accepts a client with this address. The library must not read past its length, and must give an IP client a place. */
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

/* The first *others* events are not those of clients; those with even descriptors belong to listeners. An event of a
 * listener with a connection must come *before* times if there is room, and twice as often the next time. Any other
 * event must come once. */
static void try_accepts(struct epoll_event *events, int others, unsigned int before, int room)
{
	unsigned int waiting = 0, max = others + room, reported[CLIENTS + 1] = { 0 };
	int count;

	for (int i = 0; i < others; i++) {
		int fd = events[i].data.fd;

		events[i].events = fd % 3 == 0 ? EPOLLOUT : EPOLLIN;
		if (fd >= 0)
			descriptors[fd].is_listener = fd % 2 == 0;
		waiting += fd >= 0 && fd % 2 == 0 && fd % 3 != 0;
	}
	accepts = before;
	count = add_accepts(events, others, others, max);
	assert(count >= others && count <= (int)max);
	assert(count == (int)max || count == others + (int)(waiting * (before - 1)));
	assert(accepts == (waiting == 0 ? 1 : before < MAX_ACCEPTS ? 2 * before : MAX_ACCEPTS));
	for (int i = 0; i < count; i++)
		if (events[i].data.fd >= 0)
			reported[events[i].data.fd]++;
	for (int i = 0; i < others; i++) {
		int fd = events[i].data.fd;

		if (fd >= 0)
			assert(reported[fd] >= 1 && reported[fd] <= (descriptors[fd].is_listener && fd % 3 != 0 ? before : 1));
		forget(fd);
	}
	accepts = 1;
}

/* Each byte is an event; a seventh of the events represent clients. The other events must keep their order. All clients
 * must get the same share: at least one event each, but in total no more than the room or EVENTS_PER_TURN. */
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
