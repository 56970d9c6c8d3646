"""What a trained policy is used by: files of other formats, servers, shared folders."""
