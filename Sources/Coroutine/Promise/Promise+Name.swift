extension Promise {
  /// Gives the promise a name, which dumps show: `Promise<Int> "login" 0x7f…`.
  ///
  /// A second name replaces the first; promises that handlers return have none. Any thread; does not suspend.
  /// - Returns: The promise.
  @discardableResult
  public func named(_ name: String) -> Promise {
    setName(name)
    return self
  }
}
