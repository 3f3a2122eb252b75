/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Fuzz tests for shim/turns/joined_writes.c, included by turns.c in this directory: all data that an event loop writes
 * to its clients must arrive in order, even if the program closes the connection. Only a connection for which the
 * library has no free descriptor may be reset.
 */

#define STREAMS 3

struct stream {
	int server, client; /* -1: closed */
	size_t sent, received;
	bool reset; /* the client received ECONNRESET, which recv(2) reports only once */
	uint32_t events; /* requested from epoll(7) */
};

/* Returns the byte that each stream has at this position. */
static char byte_at(size_t at)
{
	return (char)(at * 31 + (at >> 8) + 7);
}

/* Receives and checks data. Returns false at the end of the stream. */
static bool receive(struct stream *stream, size_t max)
{
	static char buffer[1 << 17];
	ssize_t size = recv(stream->client, buffer, max < sizeof buffer ? max : sizeof buffer, MSG_DONTWAIT);

	for (ssize_t i = 0; i < size; i++)
		assert(buffer[i] == byte_at(stream->received + i));
	if (size > 0)
		stream->received += size;
	if (size < 0 && errno == ECONNRESET)
		stream->reset = first_copy == end_of_copies;
	if (size == 0)
		assert(stream->reset || (stream->server == -1 && stream->received == stream->sent));
	assert(stream->received <= stream->sent);
	assert(size >= 0 || errno == EAGAIN || errno == EINTR || stream->reset);
	return size > 0 || (size < 0 && errno != ECONNRESET);
}

static void write_bytes(struct stream *stream, size_t size)
{
	static char buffer[MAX_JOINED_BYTES + 1];
	ssize_t written;

	for (size_t i = 0; i < size; i++)
		buffer[i] = byte_at(stream->sent + i);
	written = write(stream->server, buffer, size);
	assert(written == -1 ? errno == EAGAIN || errno == EPIPE || errno == ECONNRESET : written > 0 && (size_t)written <= size);
	if (written > 0)
		stream->sent += written;
}

static void poll_for(struct stream *stream, int loop, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.fd = stream->server };
	int change = stream->events == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;

	if (stream->events == 0 && events == 0)
		return;
	assert(epoll_ctl(loop, change, stream->server, &event) == 0);
	stream->events = events;
}

static void poll_loop(struct stream *streams, int loop, int wait)
{
	struct epoll_event events[2 * STREAMS];
	int count = epoll_wait(loop, events, 2 * STREAMS, wait);

	assert(count >= 0 && count <= STREAMS);
	for (int i = 0; i < count; i++) {
		int n = 0;

		while (n < STREAMS && streams[n].server != events[i].data.fd)
			n++;
		assert(n < STREAMS && events[i].events != 0);
		assert((events[i].events & ~(streams[n].events | EPOLLERR | EPOLLHUP)) == 0);
	}
	for (int fd = 0; fd < DESCRIPTORS && joined_count > 0; fd++) {
		struct joined *joined = descriptors[fd].joined;

		assert(joined == NULL || (joined->fd == fd && all_joined[joined->index] == joined));
	}
}

static void open_streams(struct stream *streams, int loop)
{
	static int listener = -1;
	static struct sockaddr_in address;
	struct sockaddr_in from;
	socklen_t length = sizeof address;

	if (listener < 0) {
		address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		listener = socket(AF_INET, SOCK_STREAM, 0);
		assert(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, STREAMS) == 0);
		assert(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	}
	for (int i = 0; i < STREAMS; i++) {
		streams[i] = (struct stream){ .client = socket(AF_INET, SOCK_STREAM, 0) };
		length = sizeof from;
		assert(connect(streams[i].client, (struct sockaddr *)&address, sizeof address) == 0);
		streams[i].server = accept4(listener, (struct sockaddr *)&from, &length, SOCK_NONBLOCK);
		assert(streams[i].server >= 0 && belongs_to_client(streams[i].server));
		poll_for(&streams[i], loop, EPOLLIN | EPOLLOUT);
	}
}

/* Resets the connection, because TIME_WAIT would use up the ports. */
static void reset_client(struct stream *stream)
{
	static const struct linger reset = { .l_onoff = 1 };

	if (stream->client < 0)
		return;
	setsockopt(stream->client, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
	next_close(stream->client);
	stream->client = -1;
}

static void close_server(struct stream *stream)
{
	if (stream->server >= 0)
		close(stream->server);
	stream->server = -1;
}

static void take_step(struct stream *stream, struct stream *streams, int loop, int action)
{
	static const size_t sizes[] = { PIECE, PIECE, PIECE, PIECE + FRAMING, PIECE + FRAMING + 1, 1, 700, MAX_JOINED_BYTES };
	static const uint32_t events[] = { EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, 0 };
	int size;

	if (action < 16) {
		poll_loop(streams, loop, 0);
	} else if (stream->client >= 0 && action < 24) {
		receive(stream, action % 2 == 0 ? 5000 : 1 << 17);
	} else if (stream->server < 0) {
		return;
	} else if (action < 64) {
		write_bytes(stream, sizes[action % 8]);
	} else if (action < 76) {
		poll_for(stream, loop, events[action % 4]);
	} else if (action < 82) {
		size = action % 2 == 0 ? 1 : 1 << 20;
		setsockopt(stream->server, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
	} else if (action == 82) {
		reset_client(stream);
	} else if (action == 83) {
		close_server(stream);
	}
}

/* Each byte is one step of one stream. */
static void try_writes(const uint8_t *data, size_t size)
{
	struct stream streams[STREAMS];
	time_t end;
	int loop = epoll_create1(EPOLL_CLOEXEC), last_copy;

	mptcp_copy(-1); /* the first call reserves the descriptors */
	last_copy = end_of_copies;
	signal(SIGPIPE, SIG_IGN); /* as Squid does */
	start();
	fair = true;
	event_loop = -1;
	open_streams(streams, loop);
	if (size % 4 == 0)
		end_of_copies = first_copy;
	for (size_t i = 0; i < size && i < 200; i++)
		take_step(&streams[data[i] % STREAMS], streams, loop, data[i] / STREAMS);
	end = now() + 8;
	for (int i = 0; i < STREAMS; i++) {
		struct stream *stream = &streams[i];

		if (stream->server >= 0)
			poll_for(stream, loop, EPOLLIN);
		/* The library must send the remaining data even if the program does not request EPOLLOUT. */
		while (stream->client >= 0 && stream->received < stream->sent && receive(stream, 1 << 17)) {
			poll_loop(streams, loop, 0);
			assert(now() < end);
		}
		reset_client(stream);
	}
	for (int i = 0; i < STREAMS; i++)
		close_server(&streams[i]);
	/* If a client has closed while data wait for it, the library closes the connection in the next turn. */
	for (int turn = 0; turn < 3; turn++)
		poll_loop(streams, loop, 0);
	assert(joined_count == 0 && waiting_count == 0 && ended_count == 0);
	for (uint16_t place = 1; place < place_count; place++)
		assert(clients[place].descriptor_count == 0);
	end_of_copies = last_copy;
	fair = false;
	event_loop = -1;
	next_close(loop);
}
