# SPDX-License-Identifier: GPL-2.0-or-later
"""What is kept for people and programs that ask, beside what decisions need. Pure; nothing here decides anything."""
