#if Logging
import Coroutine
public import Logging

extension Logger.MetadataProvider {
  /// A provider that adds the calling coroutine to each line: its number as `co.id`, and its name, if it has one, as
  /// `co.name`.
  ///
  /// ```swift
  /// LoggingSystem.bootstrap(StreamLogHandler.standardError, metadataProvider: .coroutine)
  /// ```
  ///
  /// The name is escaped as in dumps, so it cannot forge a line of the log.
  ///
  /// Lines that are logged outside a coroutine, also by async code that a coroutine awaits, get no metadata. The
  /// numbers are those of `Job.id`, of dumps and of reports. Combine it with other providers by `multiplex`. Never
  /// suspends; any thread.
  public static var coroutine: Logger.MetadataProvider {
    Logger.MetadataProvider {
      guard let label = RunningCoroutine.label else { return [:] }
      var metadata: Logger.Metadata = ["co.id": "\(label.id)"]
      if let name = label.name { metadata["co.name"] = .string(name) }
      return metadata
    }
  }
}
#endif
