import type { ComponentChild } from "preact";

const PATHS = {
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10Zm3.6-1.4L14 14",
  key: "M10 6a3 3 0 1 0-2.6 3L9 10.5V12h2v2h3v-2.5L9.9 7.4A3 3 0 0 0 10 6Z",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM8 1v2M8 13v2M1 8h2M13 8h2M3 3l1.4 1.4M11.6 11.6 13 13M3 13l1.4-1.4M11.6 4.4 13 3",
  moon: "M13.5 10A6 6 0 0 1 6 2.5 6 6 0 1 0 13.5 10Z",
  auto: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Zm0 0v12",
  plus: "M8 3v10M3 8h10",
  refresh: "M13 8a5 5 0 1 1-1.5-3.5M13 2v3h-3",
  command: "M5 5h6v6H5zM5 5H3.5A1.5 1.5 0 1 1 5 3.5V5Zm6 0V3.5A1.5 1.5 0 1 1 12.5 5H11Zm0 6h1.5a1.5 1.5 0 1 1-1.5 1.5V11Zm-6 0v1.5A1.5 1.5 0 1 1 3.5 11H5Z",
  help: "M6 6a2 2 0 1 1 3 1.7c-.7.4-1 .8-1 1.6M8 12v.3",
  clip: "M12.5 7.5 8 12a3 3 0 0 1-4.2-4.2L9 2.6a2 2 0 0 1 2.8 2.8L6.7 10.5a1 1 0 0 1-1.4-1.4l4.5-4.5",
  close: "M4 4l8 8M12 4l-8 8",
  check: "M3 8.5 6.5 12 13 4.5",
  alert: "M8 2 15 14H1L8 2Zm0 5v3m0 2v.2",
  play: "M4 3v10l9-5z",
  more: "M3 8h.01M8 8h.01M13 8h.01",
};

export function Icon({ name }: { name: keyof typeof PATHS }): ComponentChild {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
