#if Demo
/// The limits of a chat server.
struct ChatOptions: Sendable {
  /// How many clients there may be at once; one more is told so and sent away.
  var limit = 1_000
  /// How many seconds a client may say nothing.
  var idle = 300.0
  /// How many bytes a line may have.
  var longestLine = 1_000
  /// How many lines may wait for a client that does not read; with one more, the client is sent away.
  var backlog = 256
  /// How long a client may take to receive what is written to it at once, before its connection is closed.
  var patience = Duration.seconds(10)
  /// How long clients may take to receive the last lines when the server stops.
  var drain = Duration.seconds(5)
  /// How long a client whose session has ended may take to close its end.
  var linger = Duration.seconds(1)
}
#endif
