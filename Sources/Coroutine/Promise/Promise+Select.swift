extension Promise {
  /// Returns a case for ``co_select(biased:_:)`` that waits for the promise.
  ///
  /// Ready when the promise is settled; `body` gets the outcome. If another case is selected, the promise is unchanged.
  @inlinable
  public final func onAwait<R>(_ body: @escaping (sending Result<Success, any Error>) throws -> R) -> SelectCase<R> {
    SelectCase(
      PromiseAwait<Success>.self,
      target: self,
      lock: completion.lockAddress,
      queue: completion.waiterAddress,
      taking: body
    )
  }
}

@usableFromInline
enum PromiseAwait<Success: Sendable>: SelectOperation {
  @inlinable
  static func attempt(_ promise: Promise<Success>, _ waiter: SelectWaiterRef) -> SelectAnswer {
    promise.completion.known.isSettled ? .yes : .no
  }
  @inlinable
  static func finish(_ promise: Promise<Success>, _ waiter: SelectWaiterRef) -> Result<Success, any Error> {
    promise.completion.seenOutcome(as: Success.self)
  }
}
