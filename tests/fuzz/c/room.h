/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * As mptcp-proxy has it: there is room for the libraries' own descriptors.
 */

__attribute__((constructor)) static void lower_limit(void)
{
	struct rlimit limit;

	assert(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max / 2 < 4096 ? limit.rlim_max / 2 : 4096;
	assert(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}
