// Changes are rendered once per frame: five thousand chunks must not cause five thousand renders.
const waiting = new Map<unknown, () => void>();
let isScheduled = false;

export function onNextFrame(key: unknown, work: () => void): void {
  waiting.set(key, work);
  if (isScheduled) return;
  isScheduled = true;
  afterFrame(run);
}

function run(): void {
  isScheduled = false;
  const works = [...waiting.values()];
  waiting.clear();
  for (const work of works) work();
}

/** Wait for a frame of the browser. Hidden tabs have no frames, so a timer replaces it. */
export function afterFrame(work: () => void): void {
  let isDone = false;
  const once = (): void => {
    if (isDone) return;
    isDone = true;
    work();
  };
  requestAnimationFrame(once);
  setTimeout(once, 200);
}
