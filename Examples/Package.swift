// swift-tools-version:6.2
import PackageDescription

// Programs that use the library as others would, with packages that the library does not need. A package of its own, so
// that nobody who depends on the library fetches them.
//   CO_WERROR  set: warnings are errors.
let warningsAreErrors = Context.environment["CO_WERROR"] != nil

let coroutine: Target.Dependency = .product(name: "Coroutine", package: "coroutine")
let coroutineNIO: Target.Dependency = .product(name: "CoroutineNIO", package: "coroutine")
let coroutineNet: Target.Dependency = .product(name: "CoroutineNet", package: "coroutine")
func nio(_ name: String) -> Target.Dependency { .product(name: name, package: "swift-nio") }
let nioSSL: Target.Dependency = .product(name: "NIOSSL", package: "swift-nio-ssl")

let package = Package(
  name: "examples",
  products: [
    .library(name: "NIOHTTPServer", targets: ["NIOHTTPServer"]),
    .executable(name: "feed-site", targets: ["FeedSite"]),
  ],
  dependencies: [
    // The name is given because the folder may be called anything.
    .package(name: "coroutine", path: "..", traits: ["NIO"]),
    .package(url: "https://github.com/apple/swift-nio", from: "2.101.0"),
    .package(url: "https://github.com/apple/swift-nio-ssl", from: "2.37.0"),
  ],
  targets: [
    .target(
      name: "NIOHTTPServer",
      dependencies: [coroutine, coroutineNIO, nio("NIOCore"), nio("NIOHTTP1"), nio("NIOPosix")]
    ),
    .testTarget(
      name: "NIOHTTPServerTests",
      dependencies: [
        "NIOHTTPServer", coroutine, coroutineNet, nio("NIOConcurrencyHelpers"), nio("NIOCore"), nio("NIOHTTP1"),
        nio("NIOPosix"), nioSSL,
      ]
    ),
    // Parses with the files of CoroutineDemo, by links to them in its folder Shared.
    .executableTarget(
      name: "FeedSite",
      dependencies: [
        "NIOHTTPServer", coroutine, coroutineNIO, nio("NIOConcurrencyHelpers"), nio("NIOCore"), nio("NIOHTTP1"),
        nio("NIOPosix"),
      ],
      swiftSettings: [.define("Demo")]
    ),
    .testTarget(
      name: "FeedSiteTests",
      dependencies: [
        "FeedSite", coroutine, coroutineNet, nio("NIOCore"), nio("NIOPosix"),
      ]
    ),
  ],
  swiftLanguageModes: [.v6]
)

for target in package.targets {
  target.swiftSettings =
    (target.swiftSettings ?? []) + [
      .enableUpcomingFeature("ExistentialAny"),
      .enableUpcomingFeature("InternalImportsByDefault"),
      .enableUpcomingFeature("MemberImportVisibility"),
      .enableUpcomingFeature("NonisolatedNonsendingByDefault"),
    ] + (warningsAreErrors ? [.treatAllWarnings(as: .error)] : [])
}
