/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Lowers the soft limit of open files, as mptcp-proxy does, so that the libraries can use the descriptors above it.
 */

__attribute__((constructor)) static void lower_limit(void)
{
	struct rlimit limit;

	assert(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max / 2 < 4096 ? limit.rlim_max / 2 : 4096;
	assert(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}
