// What servers have in common, whatever they accept: the scopes, the rule for their end, and the errors that end them.
//
//   isolated scope `outside`      its children are cancelled with the server's coroutine, also while that waits below
//     co_shield
//       isolated scope `handlers` its children are not
//         accept                  its waits are in children of `outside`
//         drain
//
//   ACCEPTING --- accept returns or throws ---> DRAINING --- none is left, the time is over, or cut short ---> ENDED
//                                               handlers are told to finish                handlers are cancelled
//
// The coroutine is        while ACCEPTING           while DRAINING
//   cancelled, not told   DRAINING                  nothing, if a cancellation began it; else ENDED
//   told to stop          DRAINING                  nothing
//   cancelled after that  ENDED                     ENDED
//
// A cancellation reaches the drain in the same way as the accepting: as a child of `outside`. Only the cancellation
// that has ended the accepting must not end the drain as well. Then the coroutine itself drains, in the shield.

extension Scope {
  /// Serves: accepts until the server ends, then lets the handlers finish for a while, and cancels the others.
  ///
  /// Suspends until the last handler has ended. Called in a coroutine. The server's cancellation ends it without an
  /// error. A cancellation that comes after a stop (`Scope.stop(within:)`) cancels the handlers at once.
  ///
  /// - Parameters:
  ///   - limit: The time in which handlers may finish. They are told to at its beginning (``co_isStopping``).
  ///   - noneIsLeft: Suspends until no connection is left. Called at the beginning of that time, and once more when the
  ///     handlers are cancelled: until it returns then, handlers may be launched.
  ///   - accept: Accepts until the server is to end, and launches handlers in the first scope. It waits in children of
  ///     the second one, which are cancelled with this coroutine; accept itself is not.
  /// - Throws: The error of `accept`, when the handlers have ended, unless the coroutine was cancelled before it.
  @_spi(Hosting)
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func serve(
    draining limit: Duration,
    until noneIsLeft: @escaping @Sendable () throws -> Void,
    accepting accept: (_ handlers: Scope, _ outside: Scope) throws -> Void
  ) throws {
    var failure: (any Error)?
    do {
      try co_scope(failures: .isolated) { outside in
        try co_shield {
          try co_scope(failures: .isolated) { handlers in
            do { try accept(handlers, outside) } catch { if !outside.isSignalled { failure = error } }
            handlers.stopSignal.tell()
            let drain = { @Sendable in try co_timeout(limit, noneIsLeft) }
            if outside.isSignalled, !co_isStopping {
              try? drain()
            } else {
              // In a scope that is cancelled the child does not run, and ends at once.
              _ = try? outside.launch(name: "drain", drain).join()
            }
            handlers.cancel()
            // A handler whose connection was accepted before may be launched only now, in a scope that has not ended.
            co_shield { try? noneIsLeft() }
          }
        }
      }
    } catch {
      if !co_isCancelled { throw error }
    }
    if let failure { throw failure }
  }
}
