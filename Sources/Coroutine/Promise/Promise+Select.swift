extension Promise {
  /// For ``co_select(biased:_:)``: waits for the promise.
  ///
  /// Ready when it is settled; `body` gets the outcome. Losing leaves the promise alone.
  @inlinable
  public final func onAwait<R>(_ body: @escaping (Result<Success, any Error>) throws -> R) -> SelectCase<R> {
    SelectCase(
      PromiseAwait<Success>.self,
      place: self,
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
    promise.completion.isSettled ? .yes : .no
  }
  @inlinable
  static func finish(_ promise: Promise<Success>, _ waiter: SelectWaiterRef) -> Result<Success, any Error> {
    promise.completion.seenOutcome(as: Success.self)
  }
}
