// A long list that only renders its visible rows.
import type { ComponentChild } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

interface Props<T> {
  items: T[];
  rowHeight: number;
  label: string;
  keyOf: (item: T) => string;
  children: (item: T, index: number) => ComponentChild;
  onEnd?: () => void;
  shown?: number; // the row to keep visible
  sticks?: boolean; // follows the end while the list grows, unless the user has scrolled up
  class?: string;
}

const SPARE = 6; // rows rendered above and below the visible ones

export function VirtualList<T>(props: Props<T>): ComponentChild {
  const { items, rowHeight } = props;
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(400);
  const isAtEnd = useRef(true);
  useEffect(() => {
    const element = box.current!;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    const element = box.current!;
    if (props.sticks && isAtEnd.current) element.scrollTop = element.scrollHeight;
  }, [items.length]);
  useLayoutEffect(() => {
    const element = box.current!;
    const place = (props.shown ?? -1) * rowHeight;
    if (place < 0) return;
    if (place < element.scrollTop) element.scrollTop = place;
    else if (place + rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = place + rowHeight - element.clientHeight;
  }, [props.shown, height]);
  const onScroll = (): void => {
    const element = box.current!;
    setTop(element.scrollTop);
    const left = element.scrollHeight - element.scrollTop - element.clientHeight;
    isAtEnd.current = left < rowHeight;
    if (left < 5 * rowHeight) props.onEnd?.();
  };
  const first = Math.max(0, Math.floor(top / rowHeight) - SPARE);
  const last = Math.min(items.length, Math.ceil((top + height) / rowHeight) + SPARE);
  return (
    <div class={`virtual ${props.class ?? ""}`} ref={box} onScroll={onScroll} tabIndex={0} role="region" aria-label={props.label}>
      <div class="virtual-all" style={{ height: `${items.length * rowHeight}px` }}>
        <div class="virtual-shown" style={{ transform: `translateY(${first * rowHeight}px)` }}>
          {items.slice(first, last).map((item, offset) => (
            <div key={props.keyOf(item)} style={{ height: `${rowHeight}px` }}>
              {props.children(item, first + offset)}
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}
