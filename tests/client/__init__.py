"""Tests of the client, against a scripted server and against servers of other implementations."""
