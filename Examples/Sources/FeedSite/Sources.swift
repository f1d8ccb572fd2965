import Coroutine
import CoroutineHTTP
import Foundation
import HTTPTypes

/// The feeds that the site serves to its own reader: those of the demo, sent as slowly as networks send.
enum Sources {
  static let names = [
    "planet.xml", "releases.atom", "mirror.xml", "zeitung.xml", "courrier.xml", "shimbun.xml", "notes.atom",
    "gazeta.xml", "sparse.xml", "podcast.xml", "weather.xml", "halfway.xml", "broken.xml", "gone.xml",
  ]

  /// The end of a feed that breaks off.
  private struct BrokenSource: Error {}

  /// Sends a feed in 24 pieces, with a pause after each.
  static func answer(_ name: String, pause: Duration, _ response: inout ServerResponse) throws {
    guard names.contains(name), let bytes = try? co_blocking({ try Data(contentsOf: address(of: name)) }) else {
      throw HTTPStatusError(.notFound)
    }
    let isRussian = name == "gazeta.xml"
    response.fields[.contentType] = isRussian ? "text/xml; charset=koi8-r" : "application/xml"
    response.fields[.contentLength] = "\(bytes.count)"
    let size = bytes.count / 24 + 1
    for start in stride(from: 0, to: bytes.count, by: size) {
      // Its second half never comes.
      if name == "halfway.xml", start > bytes.count / 2 { throw BrokenSource() }
      try bytes.dropFirst(start).prefix(size).withUnsafeBytes { try response.write($0) }
      try co_delay(pause)
    }
  }

  /// The samples of the demo, where they are in the repository, because SwiftPM copies no files of another package.
  private static func address(of name: String) -> URL {
    let repository = (0..<4).reduce(URL(filePath: #filePath)) { url, _ in url.deletingLastPathComponent() }
    return repository.appending(path: "Sources/CoroutineDemo/Feeds/Samples").appending(path: name)
  }
}
